"""The engine: rounds over slots (``Engine``) and the thread that runs them (``EngineLoop``).

Knows nothing of Triton Inference Server, transports or chat templates.
"""

from blockdiff.engine.config import EngineConfig
from blockdiff.engine.engine import Engine
from blockdiff.engine.loop import EngineLoop
from blockdiff.engine.tickets import RequestStopped, SlotTicket

__all__ = ["Engine", "EngineConfig", "EngineLoop", "RequestStopped", "SlotTicket"]
