"""Typed errors of the client, and how a gRPC status or an in-band text becomes one of them.

Knows Triton Inference Server's message prefixes. Knows nothing of channels, retries or exit codes.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from .types import Options


class ClientError(Exception):
    """Base of every error this package raises; ``str()`` is one line fit to show to a user.

    ``ensemble`` names the ensemble the server blamed, ``request_id`` the request it named, and
    ``retry_after`` the seconds the server asked to wait; each is None when the server said nothing.
    """

    def __init__(
        self,
        message: str,
        *,
        ensemble: str | None = None,
        request_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.ensemble = ensemble
        self.request_id = request_id
        self.retry_after = retry_after


class InvalidArgument(ClientError):
    """The request itself is wrong; sending it again cannot help."""


class Unsupported(ClientError):
    """A known field or call that this model or release does not honour."""


class NotFound(ClientError):
    """No such model (or version) on this server."""


class Unavailable(ClientError):
    """The server is unreachable, stopping, dead or full; later may work."""


class ServerSilent(Unavailable):
    """Nothing arrived for ``silence_timeout`` seconds. Never retried: the server may still work."""


class Cancelled(ClientError):
    """The generation was cancelled, here or by the server."""


class DeadlineExceeded(ClientError):
    """The deadline passed before the answer was complete."""


class ServerError(ClientError):
    """The server failed, or broke the protocol."""


_BY_STATUS: dict[str, type[ClientError]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "OUT_OF_RANGE": InvalidArgument,
    "UNIMPLEMENTED": Unsupported,
    "NOT_FOUND": NotFound,
    "UNAVAILABLE": Unavailable,
    "CANCELLED": Cancelled,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
}

# Errors inside a stream are bare text. The server's own refusals start with the field's name; the
# other texts are those of this project's models and of Triton's core. First match wins.
_FIELD = re.compile(r"^(?P<field>[a-z]\w*)[^:\s]*: ")
_FIELDS = frozenset(Options.__annotations__) | {
    *("text_input", "messages", "stream", "input_ids", "eos_ids", "stop_strings", "mode"),
    *("min_length", "random_seed", "return_num_input_tokens", "return_num_output_tokens"),
}
_NO_SUPPORT = re.compile(r"not supported|no meaning|not possible|cannot decode|model has no")
_BY_TEXT: tuple[tuple[str, type[ClientError]], ...] = (
    (r"internal error", ServerError),
    (r"timeout expired|deadline passed", DeadlineExceeded),
    (r"maximum queue size|engine has died|shutting down|stopping|not ready", Unavailable),
    (r"unavailable|retry after|slots are in use|stub process", Unavailable),
    (r"unknown model|model .* not found", NotFound),
    (r"\bcancell?ed\b", Cancelled),
    (r"not supported|unsupported", Unsupported),
    (r"inference input|expected \d+ inputs?|unexpected shape|must be a number", InvalidArgument),
)

_REQUEST_ID = re.compile(r"^\[request id: (?P<value>[^\]]*)\]\s*")
_ENSEMBLE = re.compile(r"^in ensemble '(?P<value>[^']*)',\s*")
_RETRY_AFTER = re.compile(
    r"retry (?:after|in)(?: about)? (\d+(?:\.\d+)?) ?(ms|milliseconds?|s|seconds?)?\b",
    re.IGNORECASE,
)


# gRPC's own text for a port where nobody, or something else, answers.
_NO_CONNECTION = re.compile(
    r"^failed to connect to all addresses; last error: [A-Z_]+: (?:ipv[46]:)?(?P<address>\S+): "
    r"(?:Failed to connect to remote host: )?(?P<reason>.+)$"
)


class _Parsed(NamedTuple):
    message: str
    ensemble: str | None
    request_id: str | None
    retry_after: float | None


def _parse(text: str) -> _Parsed:
    """Split Triton's prefixes off a message; they come in either order, each at most once."""
    found: dict[str, str] = {}
    rest = " ".join(text.split())
    for _ in range(2):
        for name, pattern in (("request_id", _REQUEST_ID), ("ensemble", _ENSEMBLE)):
            match = pattern.match(rest)
            if match and name not in found:
                found[name] = match["value"]
                rest = rest[match.end() :]
    hint = _RETRY_AFTER.search(rest)
    seconds = None
    if hint:
        seconds = float(hint[1]) / (1000.0 if (hint[2] or "s").lower().startswith("m") else 1.0)
    request_id = found.get("request_id")
    if request_id == "<id_unknown>":
        request_id = None
    return _Parsed(rest, found.get("ensemble"), request_id, seconds)


def _build(kind: type[ClientError], parsed: _Parsed) -> ClientError:
    return kind(
        parsed.message or kind.__name__,
        ensemble=parsed.ensemble,
        request_id=parsed.request_id,
        retry_after=parsed.retry_after,
    )


def _plain(details: str) -> str:
    """gRPC's text about a failed connection in words that say what to look at."""
    match = _NO_CONNECTION.match(details)
    if match is None:
        return details
    address = unquote(match["address"])
    return f"cannot connect to {address} ({match['reason']}): is that a running server's gRPC port?"


def from_status(status: str, details: str) -> ClientError:
    """Error for a gRPC status name such as ``"UNAVAILABLE"`` with its detail text."""
    parsed = _parse(_plain(details))
    kind = _BY_STATUS.get(status, ServerError)
    text = parsed.message.lower()
    if kind is Unavailable and "timeout expired" in text:
        # Triton rejects a request that waited too long in a queue with UNAVAILABLE.
        kind = DeadlineExceeded
    if status == "RESOURCE_EXHAUSTED" and "larger than max" in text:
        kind = InvalidArgument
    return _build(kind, parsed)


def from_text(text: str) -> ClientError:
    """Best guess for an error inside a stream, which carries no code."""
    parsed = _parse(text)
    field = _FIELD.match(parsed.message)
    if field and field["field"] in _FIELDS:
        is_unsupported = _NO_SUPPORT.search(parsed.message)
        return _build(Unsupported if is_unsupported else InvalidArgument, parsed)
    for pattern, kind in _BY_TEXT:
        if re.search(pattern, parsed.message, re.IGNORECASE):
            return _build(kind, parsed)
    return _build(ServerError, parsed)
