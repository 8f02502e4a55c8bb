"""Exit codes of the command line."""

from __future__ import annotations

from ..errors import ClientError, InvalidArgument, NotFound, Unsupported

DONE = 0
FAILED = 1
BAD_INPUT = 2


def exit_code(error: ClientError) -> int:
    """2 when the request was wrong, 1 when anything else went wrong."""
    return BAD_INPUT if isinstance(error, InvalidArgument | NotFound | Unsupported) else FAILED
