"""The manifest lists every file with its origin. Run: pytest tests/unit/weights"""

import hashlib
import json
import os
from pathlib import Path

from blockdiff.weights.manifest import MANIFEST, read_manifest_with_digest

from .conftest import Run


def test_manifest_lists_every_visible_file(folder: Path, blockdiff: Run) -> None:
    (folder / ".cache").mkdir()
    (folder / ".cache" / "x").write_text("hidden")
    (folder / "sub").mkdir()
    (folder / "sub" / "tokens.txt").write_text("a")
    code, out, _ = blockdiff(
        *("weights", "manifest", folder, "--source", "https://example.org/m"),
        *("--revision", "abc", "--initialised", "random seed 0", "--format", "json"),
    )
    assert code == 0
    found = json.loads(out)
    assert (found["source"], found["revision"], found["initialised"]) == (
        "https://example.org/m",
        "abc",
        "random seed 0",
    )
    names = [file["name"] for file in found["files"]]
    assert names == sorted(names) and "sub/tokens.txt" in names and len(names) == 5
    for file in found["files"]:
        data = (folder / file["name"]).read_bytes()
        assert (file["size"], file["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    manifest, digest = read_manifest_with_digest(folder)
    assert found["manifest_sha256"] == digest
    assert digest == hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    assert manifest.total_size == sum(file["size"] for file in found["files"])


def test_an_old_manifest_is_kept_unless_told_otherwise(folder: Path, blockdiff: Run) -> None:
    assert blockdiff("weights", "manifest", folder)[0] == 0
    before = (folder / MANIFEST).read_bytes()
    code, _, error = blockdiff("weights", "manifest", folder)
    assert code == 2 and "--overwrite" in error
    assert (folder / MANIFEST).read_bytes() == before
    words = ("weights", "manifest", folder, "--overwrite", "--source", "s")
    assert blockdiff(*words)[0] == 0
    assert blockdiff("weights", "verify", folder)[0] == 0


def test_what_cannot_be_listed_is_refused(tmp_path: Path, blockdiff: Run) -> None:
    code, _, error = blockdiff("weights", "manifest", tmp_path / "nowhere")
    assert code == 2 and "not found" in error
    (tmp_path / "empty").mkdir()
    assert blockdiff("weights", "manifest", tmp_path / "empty")[0] == 2
    (tmp_path / "dangling").mkdir()
    os.symlink("nowhere", tmp_path / "dangling" / "model.safetensors")
    code, _, error = blockdiff("weights", "manifest", tmp_path / "dangling")
    assert code == 2 and "model.safetensors" in error and len(error.splitlines()) == 1
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe" / "model.safetensors")
    code, _, error = blockdiff("weights", "manifest", tmp_path / "pipe")
    assert code == 2 and "not a regular file" in error


def test_names_that_are_no_text_are_refused(folder: Path, blockdiff: Run) -> None:
    code, _, error = blockdiff("weights", "manifest", folder, "--source", "\udcff")
    assert code == 2 and "source" in error and "UTF-8" in error
    os.close(os.open(os.fsencode(folder) + b"/bad\xff", os.O_CREAT | os.O_WRONLY))
    code, _, error = blockdiff("weights", "manifest", folder)
    assert code == 2 and r"bad\udcff" in error and "UTF-8" in error
    assert not (folder / MANIFEST).exists()


def test_linked_files_count_as_files(folder: Path, tmp_path: Path, blockdiff: Run) -> None:
    """Download caches keep the content elsewhere and link to it."""
    shard = folder / "model-00001-of-00002.safetensors"
    shard.rename(tmp_path / "blob")
    shard.symlink_to(tmp_path / "blob")
    assert blockdiff("weights", "manifest", folder)[0] == 0
    (tmp_path / "blob").write_bytes(b"x" + (tmp_path / "blob").read_bytes()[1:])
    code, _, error = blockdiff("weights", "verify", folder)
    assert code == 2 and shard.name in error


def test_bare_group_is_bad_usage(blockdiff: Run) -> None:
    code, _, error = blockdiff("weights")
    assert code == 2 and len(error.splitlines()) == 1
    assert blockdiff("weights", "verify")[0] == 2
    assert blockdiff("weights", "paint")[0] == 2
    code, out, _ = blockdiff("weights", "--help")
    assert code == 0 and all(word in out for word in ("manifest", "verify", "inspect"))
