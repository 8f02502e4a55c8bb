"""Carries commands past Triton to the engine: cancel a request, drain the server.

Triton does not tell a running step that its ensemble was cancelled, so whoever sees it sends a
datagram over a Unix socket. Knows nothing of engines, tensors or senders.
"""

import contextlib
import os
import socket
import stat
import struct
from collections.abc import Callable
from pathlib import Path

from blockdiff.errors import ConfigError
from blockdiff.serving.worker import Worker

# sockaddr_un holds 108 bytes, the last of them a zero.
MAX_PATH_BYTES = 107
_BY_UID = struct.Struct("<cQ")
_KEY_MARK = b"k"
_UID_MARK = b"u"
_DRAIN_MARK = b"d"
_MAX_KEY_BYTES = 64
_WAKE_SECONDS = 0.2


class CancelRelay:
    """The sending side. Never blocks and never fails a request: a lost datagram costs blocks."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def cancel_uid(self, uid: int) -> None:
        self._send(_BY_UID.pack(_UID_MARK, uid))

    def cancel_key(self, key: str) -> None:
        self._send(_KEY_MARK + key.encode("ascii"))

    def drain(self) -> None:
        """Asks the engine to refuse newcomers from now on."""
        self._send(_DRAIN_MARK)

    def close(self) -> None:
        self._socket.close()

    def _send(self, datagram: bytes) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendto(datagram, self._path)


class CancelReceiver(Worker):
    """The receiving side: a thread that calls back for every well-formed datagram."""

    def __init__(
        self,
        path: Path,
        on_uid: Callable[[int], None],
        on_key: Callable[[str], None],
        on_drain: Callable[[], None],
    ) -> None:
        super().__init__("blockdiff-relay")
        self._path = path
        self._on_uid = on_uid
        self._on_key = on_key
        self._on_drain = on_drain
        self._socket = _bind(path)

    def close(self) -> None:
        super().close()
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def run(self) -> None:
        while not self._is_closing.is_set():
            try:
                datagram = self._socket.recv(_MAX_KEY_BYTES + 1)
            except TimeoutError:
                continue
            except OSError:
                return
            if datagram[:1] == _UID_MARK and len(datagram) == _BY_UID.size:
                self._on_uid(_BY_UID.unpack(datagram)[1])
            elif datagram == _DRAIN_MARK:
                self._on_drain()
            elif datagram[:1] == _KEY_MARK:
                self._on_key(datagram[1:].decode("ascii", "replace"))


def _bind(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ConfigError(
            f"relay_socket: got a path of {len(os.fsencode(path))} bytes ({path}), "
            f"allowed up to {MAX_PATH_BYTES}; set BLOCKDIFF_RELAY_SOCKET"
        )
    if path.exists():
        if not stat.S_ISSOCK(path.stat().st_mode):
            raise ConfigError(f"relay_socket: {path} exists and is no socket; choose another path")
        path.unlink()
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.settimeout(_WAKE_SECONDS)
    try:
        receiver.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        receiver.close()
        raise ConfigError(f"relay_socket: {path}: {error.strerror}; choose another path") from error
    return receiver
