"""The engine: rounds over slots (``Engine``) and the thread that runs them (``EngineLoop``).

Knows nothing of Triton Inference Server, transports or chat templates.
"""

from typing import TYPE_CHECKING, Any

from blockdiff.engine.config import EngineConfig

if TYPE_CHECKING:
    from blockdiff.engine.engine import Engine
    from blockdiff.engine.loop import EngineLoop
    from blockdiff.engine.tickets import RequestStopped, SlotTicket

__all__ = ["Engine", "EngineConfig", "EngineLoop", "RequestStopped", "SlotTicket"]


def __getattr__(name: str) -> Any:
    """Imports torch only for those who run rounds; checks of requests need none."""
    if name == "Engine":
        from blockdiff.engine import engine as module
    elif name == "EngineLoop":
        from blockdiff.engine import loop as module  # type: ignore[no-redef]
    elif name in ("RequestStopped", "SlotTicket"):
        from blockdiff.engine import tickets as module  # type: ignore[no-redef]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)
