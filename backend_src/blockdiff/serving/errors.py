"""Maps this project's errors to Triton's codes. One line each, never a traceback.

Knows the code names of ``pb_utils.TritonError``; knows nothing of transports.
"""

import traceback
from typing import Any

from blockdiff.errors import (
    BlockdiffError,
    CapacityError,
    ConfigError,
    EngineDeadError,
    RequestError,
    UnsupportedError,
)

RETRY_HINT = "retry after about 1 s"


class RequestCancelledError(BlockdiffError):
    """The caller gave the request up before it had a slot."""


# Subclasses first: the first match wins.
_CODES: tuple[tuple[type[BlockdiffError], str], ...] = (
    (UnsupportedError, "UNSUPPORTED"),
    (RequestError, "INVALID_ARG"),
    (CapacityError, "UNAVAILABLE"),
    (EngineDeadError, "UNAVAILABLE"),
    (RequestCancelledError, "CANCELLED"),
    (ConfigError, "INTERNAL"),
)


def one_line(text: str) -> str:
    return " ".join(text.split())


def triton_error(pb_utils: Any, error: BaseException, where: str) -> Any:
    """The ``pb_utils.TritonError`` for ``error``; an unexpected one is logged and named only."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return pb_utils.TritonError(one_line(str(error)), getattr(pb_utils.TritonError, code))
    log(pb_utils, "error", f"{where}: " + "".join(traceback.format_exception(error)))
    text = f"{where}: internal error ({type(error).__name__}); the server log has the details"
    return pb_utils.TritonError(text, pb_utils.TritonError.INTERNAL)


def log(pb_utils: Any, level: str, text: str) -> None:
    """Writes to the server's log: ``level`` is info, warn, error or verbose."""
    getattr(pb_utils.Logger, f"log_{level}")(text)
