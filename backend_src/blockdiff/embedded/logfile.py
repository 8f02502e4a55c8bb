"""Tritonserver's log: where it goes, and progress and the first error from it while it grows."""

import os
import re
import time
from pathlib import Path

from blockdiff.embedded.paths import cache_directory

KEPT_LOGS = 20

# I1130 12:00:00.123456 4711 model_lifecycle.cc:473] "loading: block_diffusion:1"
_LINE = re.compile(r"^(?P<level>[IWEF])\d{4} [\d:.]+ \d+ [^\]]+\] (?P<text>.*)$")
_LOADING = re.compile(r'"?loading: (?P<model>[^:"]+):\d+')
_LOADED = re.compile(r"\"?successfully loaded '(?P<model>[^']+)'")
# What is said before logging starts: a wrong option, a library that is not found.
_PLAIN_ERROR = re.compile(r"unrecognized option|error while loading|failed to|cannot open")
_NOISE = ("DCGM", "pinned system memory", "CUDA", "CudaDriver", "GPU metrics", "CPU memory")


class LogFollower:
    """Follows one log file from a byte offset on."""

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset
        self._rest = ""
        self._errors: list[str] = []

    def progress_lines(self) -> list[str]:
        """What happened since the last call, in words for a person."""
        said = []
        for line in self._new_lines():
            found = _LINE.match(line)
            if found is None:
                if _PLAIN_ERROR.search(line):
                    self._errors.append(line.strip())
                continue
            if found["level"] in "EF" and not any(word in line for word in _NOISE):
                self._errors.append(_first_sentence(found["text"]))
            loading, loaded = _LOADING.search(found["text"]), _LOADED.search(found["text"])
            if loading:
                said.append(f"loading model {loading['model']}")
            elif loaded:
                said.append(f"model {loaded['model']} is loaded")
        return said

    def last_error(self) -> str | None:
        """The most telling error line so far, without its log prefix."""
        self.progress_lines()
        telling = [line for line in self._errors if "creating server" not in line]
        chosen = telling or self._errors
        return chosen[0] if chosen else None

    def _new_lines(self) -> list[str]:
        try:
            with open(self._path, "rb") as handle:
                handle.seek(self._offset)
                data = handle.read()
        except OSError:
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
        return lines


def _first_sentence(text: str) -> str:
    """Without quotes and without the traceback that follows an escaped line break."""
    return text.strip('"').split("\\n")[0].rstrip()


def new_log_path() -> Path:
    """A log file of this run in the cache; only the newest runs' logs are kept."""
    folder = cache_directory() / "logs"
    folder.mkdir(exist_ok=True)
    for old in sorted(folder.glob("tritonserver-*.log"))[:-KEPT_LOGS]:
        old.unlink(missing_ok=True)
    return folder / f"tritonserver-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
