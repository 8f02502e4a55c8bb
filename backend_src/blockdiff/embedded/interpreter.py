"""What Triton's Python stub needs of the interpreter that runs us: libpython and import paths.

Knows Pythons (Debian, pyenv, conda), not Triton.
"""

import importlib.util
import os
import platform
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blockdiff.embedded.debian import cached_package, fetch_package
from blockdiff.errors import ConfigError

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
SUPPORTED = ("3.10", "3.11", "3.12")
LIBRARY_NAME = f"libpython{VERSION}.so.1.0"
PACKAGE = f"libpython{VERSION}"
PATHS_VARIABLE = "BLOCKDIFF_PYTHONPATH"

Say = Callable[[str], None]


@dataclass(frozen=True)
class LibPython:
    """The shared library of this interpreter's version and where it came from."""

    path: Path
    source: str  # "interpreter" or "debian package in cache"


def library_folders() -> list[Path]:
    """Folders where this interpreter's own shared library may lie, most likely first."""
    libdir = sysconfig.get_config_var("LIBDIR")
    multiarch = sysconfig.get_config_var("MULTIARCH")
    prefixes = [Path(sys.base_prefix) / "lib", Path(sys.base_exec_prefix) / "lib"]
    folders = [Path(libdir)] if libdir else []
    folders += prefixes
    if multiarch:
        folders += [folder / multiarch for folder in [*folders]]
    return list(dict.fromkeys(folders))


def find_libpython(say: Say = lambda line: None, fetch: bool = True) -> LibPython:
    """The shared libpython of this interpreter; on Debian it is fetched without root if missing."""
    check_version()
    for folder in library_folders():
        if (folder / LIBRARY_NAME).exists():
            return LibPython(folder / LIBRARY_NAME, "interpreter")
    if is_system_python():
        root = cached_package(PACKAGE)
        if root is None and fetch:
            say(f"this Python has no shared libpython: fetching {PACKAGE}")
            root = fetch_package(PACKAGE)
        for path in sorted(root.rglob(LIBRARY_NAME)) if root is not None else ():
            return LibPython(path, "debian package in cache")
    raise ConfigError(missing_message())


def check_version() -> None:
    """Refuse interpreters that the server carries no stub for."""
    if platform.python_implementation() != "CPython" or VERSION not in SUPPORTED:
        raise ConfigError(
            f"Python {platform.python_version()} ({platform.python_implementation()}): "
            f"the server runs its models under CPython {', '.join(SUPPORTED)}"
        )


def is_system_python() -> bool:
    """True for the distribution's own interpreter (also below a virtual environment)."""
    return sys.base_prefix == "/usr"


def missing_message() -> str:
    """One line that says what to install for this kind of interpreter."""
    where = f"Python {platform.python_version()} at {sys.base_prefix} has no {LIBRARY_NAME}"
    if is_system_python():
        fix = f"install the package {PACKAGE} (apt-get install {PACKAGE})"
    elif "pyenv" in Path(sys.base_prefix).parts or ".pyenv" in Path(sys.base_prefix).parts:
        version = platform.python_version()
        fix = f"rebuild it: PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install --force {version}"
    else:
        fix = "use a Python built with --enable-shared (Debian's, conda's and uv's work)"
    return f"{where}, which Triton's Python backend loads: {fix}"


def import_paths() -> list[str]:
    """Folders from which a Python model imports what this process imports."""
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    paths = []
    for name in ("blockdiff", "blockdiff_kernels"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            paths += [str(Path(location).parent) for location in spec.submodule_search_locations]
    for entry in sys.path:
        folder = Path(entry)
        if entry and folder.is_dir() and entry not in standard and folder.name != "lib-dynload":
            paths.append(str(folder.resolve()))
    script = Path(sys.argv[0]).resolve().parent if sys.argv and sys.argv[0] else None
    return [path for path in dict.fromkeys(paths) if script is None or path != str(script)]


def python_environment() -> dict[str, str]:
    """PATH and PYTHONPATH under which an embedded interpreter is the same as this one."""
    # The embedded interpreter looks for "python3" on PATH to find its standard library, and for
    # pyvenv.cfg beside it.
    folder = str(Path(sys.executable).parent)
    path = os.environ.get("PATH", os.defpath)
    paths = os.pathsep.join(import_paths())
    return {
        "PATH": f"{folder}{os.pathsep}{path}",
        "PYTHONPATH": paths,
        PATHS_VARIABLE: paths,
    }
