"""Where blockdiff keeps what it unpacks, and the lock that guards it. Knows no server."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blockdiff.errors import ConfigError


def cache_directory() -> Path:
    """The user's cache folder for unpacked binaries, created when missing."""
    base = os.environ.get("BLOCKDIFF_CACHE_DIR")
    if base:
        path = Path(base).expanduser()
    else:
        xdg = os.environ.get("XDG_CACHE_HOME")
        path = (Path(xdg) if xdg else Path.home() / ".cache") / "blockdiff"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cache folder {path}: {error.strerror}; set BLOCKDIFF_CACHE_DIR to a writable folder"
        ) from error
    return path.resolve()


@contextmanager
def exclusive(lock_path: Path) -> Iterator[None]:
    """Hold an advisory lock between processes; a killed holder releases it."""
    with open(lock_path, "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
