"""Client library for block-diffusion models behind Triton Inference Server.

``Client`` blocks, ``AsyncClient`` awaits; both stream typed blocks. Needs no torch and knows
nothing of the engine.
"""

from .aio import AsyncBlockStream, AsyncClient
from .canvas import Canvas, CanvasPlace
from .connection import Connection
from .errors import (
    Cancelled,
    ClientError,
    DeadlineExceeded,
    InvalidArgument,
    NotFound,
    ServerError,
    ServerSilent,
    Unavailable,
    Unsupported,
)
from .sync import BlockStream, Client
from .types import (
    BlockEvent,
    CallOptions,
    Generation,
    Health,
    ModelHealth,
    Options,
    RequestOptions,
    RetryPolicy,
    ToolCall,
)

__all__ = [
    "AsyncBlockStream",
    "AsyncClient",
    "BlockEvent",
    "BlockStream",
    "CallOptions",
    "Cancelled",
    "Canvas",
    "CanvasPlace",
    "Client",
    "ClientError",
    "Connection",
    "DeadlineExceeded",
    "Generation",
    "Health",
    "InvalidArgument",
    "ModelHealth",
    "NotFound",
    "Options",
    "RequestOptions",
    "RetryPolicy",
    "ServerError",
    "ServerSilent",
    "ToolCall",
    "Unavailable",
    "Unsupported",
]
