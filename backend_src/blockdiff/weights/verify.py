"""Checks a weights folder against its manifest and names each bad file.

Knows hashes and file states; an interrupted run leaves a state file and the next one goes on there.
"""

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from blockdiff.errors import ConfigError
from blockdiff.weights.hashing import FileState, Progress, hash_files
from blockdiff.weights.manifest import (
    Manifest,
    file_names,
    read_manifest_with_digest,
    replace_text,
)

STATE = ".blockdiff-verify.json"
SHOWN_PROBLEMS = 8
SAVE_SECONDS = 1.0


@dataclass(frozen=True)
class Problem:
    """One bad file. ``kind``: missing, extra, truncated, too_long, swapped, changed, unreadable."""

    file: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.file}: {self.detail}"


@dataclass(frozen=True)
class Verification:
    """Outcome for a folder."""

    folder: str
    manifest_sha256: str
    files: int
    total_size: int
    resumed_files: int  # whose hashes an interrupted run had left
    problems: tuple[Problem, ...]

    @property
    def is_good(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.is_good, **asdict(self)}

    def refuse(self) -> None:
        """Raise one ConfigError line that names the bad files; nothing when there are none."""
        if self.problems:
            shown = "; ".join(str(problem) for problem in self.problems[:SHOWN_PROBLEMS])
            more = len(self.problems) - SHOWN_PROBLEMS
            shown += f"; and {more} more" if more > 0 else ""
            raise ConfigError(f"{self.folder}: not what its manifest says: {shown}")


class _Done(BaseModel):
    """A file that has been hashed, and its state then."""

    model_config = ConfigDict(extra="forbid", strict=True)

    size: int
    mtime_ns: int
    sha256: str

    def fits(self, state: FileState | None) -> bool:
        return state == FileState(self.size, self.mtime_ns)


class _Memory(BaseModel):
    """What a verification has hashed so far. Filled file by file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    manifest_sha256: str
    files: dict[str, _Done]


def verify(
    folder: Path,
    workers: int | None = None,
    progress: Progress | None = None,
    resume: bool = True,
) -> Verification:
    """Check every file of the manifest, and that there is no other.

    A finished run removes the state file: a later run reads everything again, since damage on a
    disk changes no time stamp.
    """
    manifest, digest = read_manifest_with_digest(folder)
    problems, states = _compare_names_and_sizes(folder, manifest)
    memory = _Memory(manifest_sha256=digest, files={})
    if resume:
        found = _read_memory(folder, digest).files
        memory.files = {name: done for name, done in found.items() if done.fits(states.get(name))}
    resumed = len(memory.files)
    rest = {name: state for name, state in states.items() if name not in memory.files}
    _hash_rest(folder, rest, memory, problems, workers, progress)
    _compare_content(manifest, memory, problems)
    with contextlib.suppress(OSError):
        (folder / STATE).unlink(missing_ok=True)
    ordered = tuple(problems[name] for name in sorted(problems))
    return Verification(
        str(folder), digest, len(manifest.files), manifest.total_size, resumed, ordered
    )


def _compare_names_and_sizes(
    folder: Path, manifest: Manifest
) -> tuple[dict[str, Problem], dict[str, FileState]]:
    """What needs no reading, and the states of the files whose content is worth hashing."""
    problems: dict[str, Problem] = {}
    states: dict[str, FileState] = {}
    listed_sizes = {file.size for file in manifest.files}
    present = set(file_names(folder))
    for extra in sorted(present - {file.name for file in manifest.files}):
        problems[extra] = Problem(extra, "extra", "is not in the manifest")
    for file in manifest.files:
        # A manifest may list hidden files; the walk over the folder leaves them out.
        if file.name not in present and not os.path.isfile(folder / file.name):
            problems[file.name] = Problem(file.name, "missing", "is missing")
            continue
        try:
            state = FileState.of(folder / file.name)
        except ConfigError as error:
            problems[file.name] = Problem(file.name, "unreadable", str(error))
            continue
        if state.size != file.size:
            kind = "truncated" if state.size < file.size else "too_long"
            detail = f"has {state.size} bytes, must have {file.size}"
            problems[file.name] = Problem(file.name, kind, f"{kind.replace('_', ' ')}: {detail}")
        # A file of a wrong size that is another file's may be that file.
        if state.size in listed_sizes:
            states[file.name] = state
    return problems, states


def _hash_rest(
    folder: Path,
    states: Mapping[str, FileState],
    memory: _Memory,
    problems: dict[str, Problem],
    workers: int | None,
    progress: Progress | None,
) -> None:
    """Hash what is not known yet into ``memory``; an interruption leaves it on disk."""
    saved = time.monotonic()
    try:
        with contextlib.closing(hash_files(folder, states, workers, progress)) as results:
            for result in results:
                if result.problem is not None:
                    problems[result.name] = Problem(result.name, "unreadable", result.problem)
                    continue
                memory.files[result.name] = _Done(**asdict(result.state), sha256=result.sha256)
                if time.monotonic() - saved >= SAVE_SECONDS:
                    _write_memory(folder, memory)
                    saved = time.monotonic()
    except BaseException:
        _write_memory(folder, memory)
        raise


def _compare_content(manifest: Manifest, memory: _Memory, problems: dict[str, Problem]) -> None:
    owners = {file.sha256: file.name for file in manifest.files}
    for file in manifest.files:
        done = memory.files.get(file.name)
        if done is None or done.sha256 == file.sha256:
            continue
        owner = owners.get(done.sha256)
        if owner is not None:
            detail = f"holds the content of {owner}"
            problems[file.name] = Problem(file.name, "swapped", detail)
        elif file.name not in problems:
            detail = f"damaged, or another file: SHA-256 {done.sha256}, must be {file.sha256}"
            problems[file.name] = Problem(file.name, "changed", detail)


def _read_memory(folder: Path, manifest_sha256: str) -> _Memory:
    """What an interrupted run knew; nothing if there was none, or of another manifest."""
    try:
        memory = _Memory.model_validate_json((folder / STATE).read_bytes())
    except (OSError, ValidationError):
        return _Memory(manifest_sha256=manifest_sha256, files={})
    if memory.manifest_sha256 != manifest_sha256:
        return _Memory(manifest_sha256=manifest_sha256, files={})
    return memory


def _write_memory(folder: Path, memory: _Memory) -> None:
    # A folder that cannot be written can still be verified, only not resumed.
    with contextlib.suppress(ConfigError):
        replace_text(folder / STATE, memory.model_dump_json())
