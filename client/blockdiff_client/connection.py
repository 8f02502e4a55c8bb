"""Where and how to connect: address, channel arguments, TLS, headers.

Serves the sync and the async client; opens nothing itself and knows nothing of generations.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from .errors import ClientError, InvalidArgument, from_status

DEFAULT_URL = "localhost:8001"
URL_VARIABLE = "BLOCKDIFF_URL"


@dataclass(frozen=True)
class Connection:
    """``url`` is ``host:port``, ``grpc://host:port`` or ``grpcs://host:port`` (TLS).

    ``status_errors`` asks the server to end a stream with a gRPC status code on its first error,
    where it otherwise sends the error as bare text whose kind is guessed. Off, because Triton
    2.51 aborts as a whole when such an error follows a block that is still being written.
    """

    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    root_certificates: bytes | None = None
    status_errors: bool = False

    @property
    def shown_url(self) -> str:
        return self.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL

    @property
    def target(self) -> str:
        scheme, separator, rest = self.shown_url.partition("://")
        if not separator:
            return self.shown_url
        if scheme not in ("grpc", "grpcs"):
            raise InvalidArgument(
                f"url: {self.shown_url!r} is not a gRPC address (host:port, usually port 8001)"
            )
        return rest.rstrip("/")

    def credentials(self) -> Any:
        """TLS credentials, or None for plain text."""
        if self.root_certificates is None and not self.shown_url.startswith("grpcs://"):
            return None
        return grpc.ssl_channel_credentials(self.root_certificates)

    def channel_arguments(self) -> list[tuple[str, int]]:
        arguments = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            # Reconnect soon after a restart instead of failing fast for up to two minutes.
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        # No keep-alive pings: the server punishes them (GOAWAY) while a stream is quiet, and the
        # silence timer finds a dead peer anyway.
        if _is_loopback(self.target):
            # gRPC would send even loopback traffic through the proxy named by `http_proxy`.
            arguments.append(("grpc.enable_http_proxy", 0))
        return arguments

    def stream_metadata(self) -> tuple[tuple[str, str], ...]:
        """Call metadata of a generation."""
        if self.status_errors:
            return (("triton_grpc_error", "true"), *self.metadata())
        return self.metadata()

    def metadata(self) -> tuple[tuple[str, str], ...]:
        return tuple((name.lower(), value) for name, value in self.headers.items())


def _is_loopback(target: str) -> bool:
    host = target.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def error_from_rpc(error: Any) -> ClientError:
    """Typed error for a grpc.RpcError (which is also a grpc.Call), sync or async."""
    code = error.code()
    name = code.name if isinstance(code, grpc.StatusCode) else "UNKNOWN"
    return from_status(name, error.details() or "")
