"""The manifest of a weights folder: which files, how long, with which content, from where.

Knows files and their hashes; knows nothing of tensors or of models.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from blockdiff.errors import ConfigError
from blockdiff.weights.hashing import FileState, Progress, hash_files

MANIFEST = "blockdiff-manifest.json"
VERSION = 1


class _Typed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ManifestFile(_Typed):
    """One file; ``name`` is relative to the folder, with forward slashes."""

    name: str = Field(min_length=1)
    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Manifest(_Typed):
    """What a weights folder holds and where it came from; None: nobody said."""

    version: int = Field(default=VERSION, ge=VERSION, le=VERSION)
    source: str | None = None
    revision: str | None = None
    initialised: str | None = None
    created: str
    files: list[ManifestFile] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_names(self) -> "Manifest":
        names = [file.name for file in self.files]
        for name in names:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or str(path) != name or "\0" in name:
                raise ValueError(f"file name {name!r} must be a plain path inside the folder")
        if len(set(names)) != len(names):
            raise ValueError("a file is listed twice")
        return self

    @property
    def total_size(self) -> int:
        return sum(file.size for file in self.files)


def write_manifest(
    folder: Path,
    source: str | None = None,
    revision: str | None = None,
    initialised: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Manifest:
    """Hash every file of ``folder`` and write its manifest there, whole or not at all."""
    for field, text in (("source", source), ("revision", revision), ("initialised", initialised)):
        _check_text(field, text or "")
    states = {}
    for name in file_names(folder):
        _check_text("file name", name)
        states[name] = FileState.of(folder / name)
    if not states:
        raise ConfigError(f"{folder}: holds no files to list")
    digests: dict[str, str] = {}
    for result in hash_files(folder, states, workers, progress):
        if result.problem is not None:
            raise ConfigError(f"{folder / result.name}: {result.problem}")
        digests[result.name] = result.sha256
    manifest = Manifest(
        source=source,
        revision=revision,
        initialised=initialised,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        files=[
            ManifestFile(name=name, size=state.size, sha256=digests[name])
            for name, state in states.items()
        ],
    )
    replace_text(folder / MANIFEST, manifest.model_dump_json(indent=1) + "\n")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """The manifest of ``folder``, or a ConfigError that says what is wrong with it."""
    return read_manifest_with_digest(folder)[0]


def read_manifest_with_digest(folder: Path) -> tuple[Manifest, str]:
    """The manifest and the SHA-256 of its file, which names this very set of weights."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: not found; give a folder with weights")
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{folder}: has no {MANIFEST}; write one with: blockdiff weights manifest {folder}"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "manifest"
        raise ConfigError(f"{path}: {place}: {first['msg']}") from None
    return manifest, hashlib.sha256(data).hexdigest()


def file_names(folder: Path) -> list[str]:
    """Files of ``folder`` and below, sorted. Hidden ones and the manifest itself do not count."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: not found; give a folder with weights")
    return sorted(name for name in _walk(folder) if name != MANIFEST)


def _check_text(field: str, text: str) -> None:
    """Bytes of the command line and of file names need not be text; what JSON can hold is."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(f"{field} {text!r} must be UTF-8 text; write or rename it so") from None


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new one, never half of it."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        half.write_text(text, encoding="utf-8")
        half.replace(path)
    except OSError as error:
        # a read-only file system refuses this too
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
        raise ConfigError(f"{path}: cannot be written ({error.strerror})") from None


def _walk(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                yield (Path(place) / name).relative_to(folder).as_posix()
