"""A temporary folder for one run of the server; what a killed run left behind is removed.

A lock held for the run tells a folder in use from a leftover, also between containers that share
the temporary directory. Knows nothing of what is kept in it.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "blockdiff-serve-"
_LOCK = "lock"


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder of this run, gone when the run has ended."""
    _remove_leftovers()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        folder = Path(name)
        # Locked before it has its name, so that nobody finds it unlocked.
        with open(folder / f".{_LOCK}", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(lock.name, folder / _LOCK)
            yield folder


def _remove_leftovers() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{_LOCK}"):
        # Another user's, in use, or removed by another run at this moment: leave it.
        with contextlib.suppress(OSError), open(path, "r+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
