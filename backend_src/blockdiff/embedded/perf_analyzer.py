"""Makes the perf_analyzer of the tritonclient wheel runnable. Knows no model and no server."""

import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

from blockdiff.embedded.debian import fetch_package
from blockdiff.embedded.paths import cache_directory, exclusive
from blockdiff.embedded.unpack import unpack_triton
from blockdiff.errors import ConfigError

# Library that perf_analyzer asks for: the copy in the server's wheel, the Debian package.
_LIBRARIES = {
    "libcudart.so.12": ("libcudart-*.so.12*", None),
    "libb64.so.0d": ("libb64-*.so.0d", "libb64-0d"),
}

Say = Callable[[str], None]


def perf_analyzer_command(say: Say = lambda line: None) -> tuple[list[str], dict[str, str]]:
    """The argv prefix and the full environment with which perf_analyzer runs on this machine."""
    binary = find_perf_analyzer()
    environment = library_environment()
    missing = missing_libraries(binary, environment)
    if missing:
        _provide(missing, _folder(), say)
        still = missing_libraries(binary, environment)
        if still:
            raise ConfigError(f"{binary}: shared libraries {', '.join(still)} are missing")
    return [str(binary)], environment


def find_perf_analyzer() -> Path:
    """perf_analyzer beside this interpreter or on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "perf_analyzer"
    if beside.exists():
        return beside
    found = shutil.which("perf_analyzer")
    if found is None:
        raise ConfigError("perf_analyzer: not found; pip install tritonclient==2.51.0 brings it")
    return Path(found)


def missing_libraries(binary: Path, environment: dict[str, str]) -> list[str]:
    """Names that the dynamic linker cannot find for this binary."""
    result = subprocess.run(
        ["ldd", str(binary)], capture_output=True, text=True, env={**os.environ, **environment}
    )
    return re.findall(r"(\S+) => not found", result.stdout)


def library_environment() -> dict[str, str]:
    """The environment in which the libraries that we provide are found."""
    folder = _folder()
    given = os.environ.get("LD_LIBRARY_PATH")
    paths = f"{folder}{os.pathsep}{given}" if given else str(folder)
    return {**os.environ, "LD_LIBRARY_PATH": paths}


def _folder() -> Path:
    return cache_directory() / "perf_analyzer-libraries"


def _provide(names: list[str], folder: Path, say: Say) -> None:
    folder.mkdir(exist_ok=True)
    with exclusive(folder.parent / f"{folder.name}.lock"):
        for name in names:
            link = folder / name
            if link.exists() or name not in _LIBRARIES:
                continue
            source = _source(name, say)
            if source is not None:
                link.unlink(missing_ok=True)
                link.symlink_to(source)


def _source(name: str, say: Say) -> Path | None:
    pattern, package = _LIBRARIES[name]
    for found in sorted((unpack_triton(say) / "nvidia_pytriton.libs").glob(pattern)):
        return found
    root = fetch_package(package) if package else None
    return next(root.rglob(f"{name}*"), None) if root is not None else None
