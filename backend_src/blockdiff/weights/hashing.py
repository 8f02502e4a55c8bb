"""SHA-256 of many files at once, with progress in bytes. Knows nothing of what they hold."""

import hashlib
import os
import stat
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock

from blockdiff.errors import ConfigError

CHUNK = 4 << 20
MOST_WORKERS = 16
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class FileState:
    """Size and time of the last change: as long as both stay, the content is taken to."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> "FileState":
        """State of a regular file (links are followed); ConfigError for anything else."""
        try:
            found = path.stat()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path}: is not a regular file")
        return cls(found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class FileHash:
    """The hash of one file, or why there is none."""

    name: str
    state: FileState
    sha256: str = ""
    problem: str | None = None


def hash_files(
    folder: Path,
    states: Mapping[str, FileState],
    workers: int | None = None,
    progress: Progress | None = None,
) -> Generator[FileHash, None, None]:
    """Hash the files of ``states``, as they finish; leaving the loop early stops the others.

    ``progress`` is called with (bytes read, bytes in all), from the caller's thread only.
    """
    total = sum(state.size for state in states.values())
    counter, stopped = _Counter(), Event()
    with ThreadPoolExecutor(workers or min(os.cpu_count() or 1, MOST_WORKERS)) as pool:
        pending: set[Future[FileHash]] = {
            pool.submit(_hash_file, folder, name, state, counter, stopped)
            for name, state in states.items()
        }
        try:
            while pending:
                finished, pending = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
                if progress is not None:
                    progress(counter.value, total)
                yield from (future.result() for future in finished)
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)


class _Counter:
    def __init__(self) -> None:
        self.value = 0
        self._lock = Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self.value += count


def _hash_file(
    folder: Path, name: str, state: FileState, counter: _Counter, stopped: Event
) -> FileHash:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(CHUNK, max(state.size, 1))))
    try:
        with (folder / name).open("rb", buffering=0) as file:
            while (count := file.readinto(buffer)) and not stopped.is_set():
                digest.update(buffer[:count])
                counter.add(count)
        after = FileState.of(folder / name)
    except OSError as error:
        return FileHash(name, state, problem=f"cannot be read ({error.strerror})")
    except ConfigError as error:
        return FileHash(name, state, problem=str(error))
    if after != state:
        return FileHash(name, state, problem="changed while it was read")
    return FileHash(name, state, digest.hexdigest())
