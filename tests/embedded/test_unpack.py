"""Unpacking the server's wheel: once, whole, safely between processes; with a small fake wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from blockdiff.embedded import unpack
from blockdiff.errors import ConfigError

MEMBERS = {
    "pytriton/tritonserver/bin/tritonserver": b"server",
    "pytriton/tritonserver/backends/python/libtriton_python.so": b"backend",
    "pytriton/tritonserver/python_backend_stubs/3.11/triton_python_backend_stub": b"stub",
    "pytriton/tritonserver/python_backend_stubs/3.8/triton_python_backend_stub": b"old",
    "pytriton/client/client.py": b"not wanted",
    "nvidia_pytriton.libs/libcudart-0.so.12": b"library",
}


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A fake wheel, an empty cache, and a download that only copies; counts its calls."""
    path = tmp_path / "nvidia_pytriton-0.7.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in MEMBERS.items():
            archive.writestr(name, content)
    monkeypatch.setenv("BLOCKDIFF_CACHE_DIR", str(tmp_path / "cache"))
    return path


@pytest.fixture
def downloads(wheel, monkeypatch) -> list[Path]:
    seen: list[Path] = []

    def download(folder: Path, say) -> Path:
        seen.append(folder)
        return wheel

    monkeypatch.setattr(unpack, "_download", download)
    return seen


def test_takes_only_what_the_server_needs(downloads):
    root = unpack.unpack_triton()
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    wanted = set(MEMBERS) - {
        "pytriton/client/client.py",
        "pytriton/tritonserver/python_backend_stubs/3.8/triton_python_backend_stub",
    }
    assert files == wanted | {"unpacked.json"}
    assert (root / "pytriton/tritonserver/bin/tritonserver").stat().st_mode & 0o111


def test_second_call_fetches_nothing(downloads):
    assert unpack.unpack_triton() == unpack.unpack_triton()
    assert len(downloads) == 1


@pytest.mark.parametrize("damage", ["truncate", "remove", "manifest"])
def test_partial_unpack_is_noticed_and_repaired(downloads, damage):
    root = unpack.unpack_triton()
    victim = root / "nvidia_pytriton.libs/libcudart-0.so.12"
    if damage == "truncate":
        victim.write_bytes(b"lib")
    elif damage == "remove":
        victim.unlink()
    else:
        (root / "unpacked.json").write_text('{"half')
    assert not unpack.is_unpacked(root)
    said: list[str] = []
    unpack.unpack_triton(said.append)
    assert victim.read_bytes() == b"library"
    assert any("incomplete" in line for line in said)


def test_killed_unpack_leaves_no_half_root(downloads, monkeypatch):
    def die(wheel: Path, root: Path) -> None:
        root.mkdir(parents=True)
        (root / "half").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(unpack, "_extract", die)
    with pytest.raises(KeyboardInterrupt):
        unpack.unpack_triton()
    assert not unpack.unpacked_root().exists()


def test_damaged_wheel_is_one_line(downloads, wheel):
    wheel.write_bytes(b"not a zip file")
    with pytest.raises(ConfigError, match="could not unpack"):
        unpack.unpack_triton()


def test_two_processes_unpack_once(wheel, tmp_path):
    code = (
        "import shutil, sys, time\n"
        "from pathlib import Path\n"
        "from blockdiff.embedded import unpack\n"
        "def download(folder, say):\n"
        "    print('fetch', flush=True)\n"
        "    time.sleep(0.5)\n"
        f"    return Path(shutil.copy({str(wheel)!r}, folder))\n"
        "unpack._download = download\n"
        "print(unpack.unpack_triton())\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "".join(outputs).count("fetch") == 1
