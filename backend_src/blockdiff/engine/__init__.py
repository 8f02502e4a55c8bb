"""The engine: rounds over slots (``Engine``) and the thread that runs them (``EngineLoop``).

Knows nothing of Triton Inference Server, transports or chat templates.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from blockdiff.engine.config import EngineConfig

if TYPE_CHECKING:
    from blockdiff.engine.engine import Engine
    from blockdiff.engine.loop import EngineLoop
    from blockdiff.engine.tickets import RequestStopped, SlotTicket

__all__ = ["Engine", "EngineConfig", "EngineLoop", "RequestStopped", "SlotTicket"]

_MODULES = {
    "Engine": "engine",
    "EngineLoop": "loop",
    "RequestStopped": "tickets",
    "SlotTicket": "tickets",
}


def __getattr__(name: str) -> Any:
    """Imports torch only for those who run rounds; checks of requests need none."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
