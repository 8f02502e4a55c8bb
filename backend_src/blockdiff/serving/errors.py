"""Maps this project's errors to Triton's codes. One line each, never a traceback.

Knows the code names of ``pb_utils.TritonError``; knows nothing of transports.
"""

import json
import re
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
# Request parameter by which ``unary`` names its inner request; Triton hands it to every step.
UNARY_KEY = "blockdiff_unary_key"
_TAG = re.compile(r"\[([A-Z_]+)\] ")
# Triton's own refusals of an inner request.
_OVERLOAD = re.compile(r"maximum queue size|timeout expired", re.IGNORECASE)


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


def triton_error(pb_utils: Any, error: BaseException, where: str, is_tagged: bool = False) -> Any:
    """The ``pb_utils.TritonError`` for ``error``; an unexpected one is logged and named only.

    ``is_tagged`` puts the code into the text, for callers that are not told it.
    """
    code, text = _describe(error)
    if not text:
        log(pb_utils, "error", f"{where}: " + "".join(traceback.format_exception(error)))
        text = f"{where}: internal error ({type(error).__name__}); the server log has the details"
    if is_tagged:
        text = f"[{code}] {text}"
    return pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))


def untagged_error(pb_utils: Any, text: str) -> Any:
    """The error behind a tagged text; Triton 24.10 drops the code of an inner request's error."""
    tag = _TAG.search(text)
    if tag is not None:
        text = text[: tag.start()] + text[tag.end() :]
        return pb_utils.TritonError(text, getattr(pb_utils.TritonError, tag[1]))
    is_overload = _OVERLOAD.search(text) is not None
    code = "UNAVAILABLE" if is_overload else "INTERNAL"
    return pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))


def unary_key(request: Any) -> str:
    """The name that ``unary`` gave this request, or nothing."""
    return str(json.loads(request.parameters() or "{}").get(UNARY_KEY, ""))


def _describe(error: BaseException) -> tuple[str, str]:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code, one_line(str(error))
    return "INTERNAL", ""


def log(pb_utils: Any, level: str, text: str) -> None:
    """Writes to the server's log: ``level`` is info, warn, error or verbose."""
    getattr(pb_utils.Logger, f"log_{level}")(text)
