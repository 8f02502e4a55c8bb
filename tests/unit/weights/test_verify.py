"""Every kind of damage is found and its file named. Run: pytest tests/unit/weights"""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from blockdiff.errors import ConfigError
from blockdiff.weights import verify as verify_module
from blockdiff.weights.manifest import MANIFEST, read_manifest, write_manifest
from blockdiff.weights.verify import STATE, verify

from .conftest import Run

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def truncate(folder: Path) -> None:
    os.truncate(folder / FIRST, (folder / FIRST).stat().st_size - 1)


def flip_a_byte(folder: Path) -> None:
    """As a bad disk would: neither size nor time changes."""
    before = (folder / FIRST).stat()
    data = bytearray((folder / FIRST).read_bytes())
    data[-5] ^= 1
    (folder / FIRST).write_bytes(data)
    os.utime(folder / FIRST, ns=(before.st_atime_ns, before.st_mtime_ns))


def swap(folder: Path) -> None:
    (folder / FIRST).rename(folder / "other")
    (folder / SECOND).rename(folder / FIRST)
    (folder / "other").rename(folder / SECOND)


def swap_unequal(folder: Path) -> None:
    (folder / FIRST).write_bytes((folder / "config.json").read_bytes())


def remove(folder: Path) -> None:
    (folder / SECOND).unlink()


def add(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "extra.safetensors").write_bytes(b"x")


def lengthen(folder: Path) -> None:
    with (folder / "config.json").open("a") as file:
        file.write(" ")


def empty(folder: Path) -> None:
    os.truncate(folder / SECOND, 0)


def make_a_folder_of_it(folder: Path) -> None:
    (folder / SECOND).unlink()
    (folder / SECOND).mkdir()


DAMAGES: list[tuple[Callable[[Path], None], dict[str, str]]] = [
    (truncate, {FIRST: "truncated"}),
    (flip_a_byte, {FIRST: "changed"}),
    (swap, {FIRST: "swapped", SECOND: "swapped"}),
    (swap_unequal, {FIRST: "swapped"}),
    (remove, {SECOND: "missing"}),
    (add, {"sub/extra.safetensors": "extra"}),
    (lengthen, {"config.json": "too_long"}),
    (empty, {SECOND: "truncated"}),
    (make_a_folder_of_it, {SECOND: "missing"}),
]


@pytest.mark.parametrize(("damage", "expected"), DAMAGES, ids=lambda x: getattr(x, "__name__", ""))
def test_damage_is_named(
    folder: Path, blockdiff: Run, damage: Callable[[Path], None], expected: dict[str, str]
) -> None:
    write_manifest(folder)
    assert blockdiff("weights", "verify", folder)[0] == 0
    damage(folder)
    outcome = verify(folder)
    assert {problem.file: problem.kind for problem in outcome.problems} == expected
    code, out, error = blockdiff("weights", "verify", folder, "--format", "json")
    assert code == 2
    assert {entry["file"] for entry in json.loads(out)["problems"]} == set(expected)
    assert len(error.splitlines()) == 1
    assert all(name in error for name in expected)


def test_all_damages_at_once_are_listed(folder: Path) -> None:
    write_manifest(folder)
    for damage in (truncate, remove, add, lengthen):
        damage(folder)
    kinds = {problem.kind for problem in verify(folder).problems}
    assert kinds == {"truncated", "missing", "extra", "too_long"}


class Stop(Exception):
    pass


def interrupt(folder: Path, after: int) -> None:
    """A verification that ends like Ctrl-C once ``after`` bytes are read."""

    def progress(done: int, total: int) -> None:
        if done >= after:
            raise Stop

    with pytest.raises(Stop):
        verify(folder, workers=1, progress=progress)


def test_an_interrupted_run_is_resumed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "SAVE_SECONDS", 0.0)
    write_manifest(folder)
    seen: list[str] = []
    real = verify_module._write_memory

    def note(place: Path, memory: verify_module._Memory) -> None:
        real(place, memory)
        seen[:] = memory.files
        if len(seen) == 2:
            raise Stop

    monkeypatch.setattr(verify_module, "_write_memory", note)
    with pytest.raises(Stop):
        verify(folder, workers=1)
    assert (folder / STATE).exists() and len(seen) == 2
    monkeypatch.setattr(verify_module, "_write_memory", real)
    read: list[int] = []
    outcome = verify(folder, progress=lambda done, total: read.append(total))
    assert outcome.is_good and outcome.resumed_files == 2
    rest = sum((folder / f.name).stat().st_size for f in read_manifest(folder).files)
    assert read[-1] == rest - sum((folder / name).stat().st_size for name in seen)
    assert not (folder / STATE).exists()
    assert verify(folder).resumed_files == 0


def test_a_file_replaced_since_the_interruption_is_read_again(folder: Path) -> None:
    write_manifest(folder)
    interrupt(folder, sum(file.size for file in read_manifest(folder).files))
    data = bytearray((folder / FIRST).read_bytes())
    data[-1] ^= 1
    (folder / FIRST).write_bytes(data)
    os.utime(folder / FIRST, ns=(1, 1))
    assert {problem.file for problem in verify(folder).problems} == {FIRST}


def test_the_state_of_another_manifest_or_of_nobody_does_not_count(folder: Path) -> None:
    write_manifest(folder)
    interrupt(folder, 0)
    write_manifest(folder, source="somewhere")
    assert verify(folder).resumed_files == 0
    (folder / STATE).write_text("{")
    assert verify(folder).is_good


def test_a_folder_that_cannot_be_written_is_verified(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest(folder)

    def refuse(path: Path, text: str) -> None:
        raise ConfigError("read-only")

    monkeypatch.setattr(verify_module, "replace_text", refuse)
    monkeypatch.setattr(verify_module, "SAVE_SECONDS", 0.0)
    assert verify(folder).is_good


def test_a_read_only_file_system_is_verified_and_gets_no_manifest(
    folder: Path, monkeypatch: pytest.MonkeyPatch, blockdiff: Run
) -> None:
    """Such a system refuses even to remove files that are not there."""
    write_manifest(folder)

    def refuse(path: Path, *arguments: object, **named: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(verify_module, "SAVE_SECONDS", 0.0)
    assert verify(folder).is_good
    code, _, err = blockdiff("weights", "manifest", str(folder), "--overwrite")
    assert code == 2 and "cannot be written (Read-only file system)" in err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"files": []}, "files"),
        ({"version": 2}, "version"),
        ({"surprise": 1}, "surprise"),
        ({"files": [{"name": "../a", "size": 1, "sha256": "0" * 64}]}, "inside the folder"),
        ({"files": [{"name": "/a", "size": 1, "sha256": "0" * 64}]}, "inside the folder"),
        ({"files": [{"name": "a", "size": 1, "sha256": "0" * 64}] * 2}, "listed twice"),
        ({"files": [{"name": "a", "size": -1, "sha256": "0" * 64}]}, "size"),
        ({"files": [{"name": "a", "size": 1, "sha256": "zz"}]}, "sha256"),
    ],
)
def test_a_bad_manifest_is_refused(
    folder: Path, blockdiff: Run, change: dict[str, object], said: str
) -> None:
    write_manifest(folder)
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    code, out, error = blockdiff("weights", "verify", folder)
    assert code == 2 and out == "" and len(error.splitlines()) == 1
    assert said in error


def test_no_manifest_and_no_folder(folder: Path, blockdiff: Run) -> None:
    code, _, error = blockdiff("weights", "verify", folder)
    assert code == 2 and "blockdiff weights manifest" in error
    code, _, error = blockdiff("weights", "verify", folder / "nowhere")
    assert code == 2 and "not found" in error
    (folder / MANIFEST).write_text("{")
    assert blockdiff("weights", "verify", folder)[0] == 2


def test_a_name_too_long_for_a_file_is_a_missing_file(folder: Path) -> None:
    write_manifest(folder)
    listed = json.loads((folder / MANIFEST).read_text())
    listed["files"][0]["name"] = "x" * 5000
    (folder / MANIFEST).write_text(json.dumps(listed))
    kinds = {problem.file: problem.kind for problem in verify(folder).problems}
    assert kinds["x" * 5000] == "missing"
