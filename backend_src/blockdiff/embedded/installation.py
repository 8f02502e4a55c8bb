"""Which tritonserver to run and the environment it needs. Knows no model and no port."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from blockdiff.embedded import interpreter
from blockdiff.embedded.paths import exclusive
from blockdiff.embedded.unpack import TRITON_VERSION, unpack_triton
from blockdiff.errors import ConfigError

STUB_NAME = "triton_python_backend_stub"
_UTILS_NAME = "triton_python_backend_utils.py"
# The wheel's stub ignores PYTHONPATH, but imports this module before any model.
_PROLOGUE = f"""import os as _os
import sys as _sys

_paths = _os.environ.get("{interpreter.PATHS_VARIABLE}", "").split(_os.pathsep)
_sys.path[:0] = [_path for _path in _paths if _path and _path not in _sys.path]

"""
_CONTAINER_ROOT = Path("/opt/tritonserver")

Say = Callable[[str], None]


@dataclass(frozen=True)
class TritonInstallation:
    """A tritonserver that can run Python models under this interpreter."""

    binary: Path
    stub: Path
    version: str
    source: str  # "path" or "wheel"
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def supports(self, flag: str) -> bool:
        """True when this release of tritonserver knows the command-line flag."""
        result = subprocess.run(
            [str(self.binary), "--help"],
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment},
        )
        return f"{flag} " in result.stdout + result.stderr


def find_installation(say: Say = lambda line: None) -> TritonInstallation:
    """The container's or PATH's tritonserver if there is one, else the one from the wheel."""
    interpreter.check_version()
    binary = installed_binary()
    return _from_wheel(say) if binary is None else _from_path(binary)


def installed_binary() -> Path | None:
    """A tritonserver that the machine already has."""
    found = shutil.which("tritonserver")
    if found:
        return Path(found).resolve()
    container = _CONTAINER_ROOT / "bin" / "tritonserver"
    return container if container.exists() else None


def _from_path(binary: Path) -> TritonInstallation:
    root = binary.parent.parent
    stub = root / "backends" / "python" / STUB_NAME
    if not stub.exists():
        raise ConfigError(f"{binary}: its Python backend is missing ({stub})")
    wanted = stub_python_version(stub)
    if wanted not in (None, interpreter.VERSION):
        raise ConfigError(
            f"{binary}: its Python backend runs Python {wanted}, this is Python "
            f"{interpreter.VERSION}; install blockdiff into that Python and start it from there"
        )
    version_file = root / "TRITON_VERSION"
    version = version_file.read_text().strip() if version_file.exists() else "unknown"
    return TritonInstallation(
        binary, stub, version, "path", environment=interpreter.python_environment()
    )


def stub_python_version(stub: Path) -> str | None:
    """The Python version a stub binary is linked against, e.g. ``3.12``."""
    found = re.search(rb"libpython(3\.\d+)\.so", stub.read_bytes())
    return found.group(1).decode() if found else None


def _from_wheel(say: Say) -> TritonInstallation:
    libpython = interpreter.find_libpython(say)
    root = unpack_triton(say)
    server = root / "pytriton" / "tritonserver"
    backends = _backend_directory(root)
    libraries = [str(libpython.path.parent), str(root / "nvidia_pytriton.libs")]
    if os.environ.get("LD_LIBRARY_PATH"):
        libraries.append(os.environ["LD_LIBRARY_PATH"])
    return TritonInstallation(
        binary=server / "bin" / "tritonserver",
        stub=backends / "python" / STUB_NAME,
        version=TRITON_VERSION,
        source="wheel",
        arguments=(f"--backend-directory={backends}", f"--cache-directory={server / 'caches'}"),
        environment={
            **interpreter.python_environment(),
            "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        },
    )


def _backend_directory(root: Path) -> Path:
    """A backend directory whose Python backend has this interpreter's stub beside it."""
    server = root / "pytriton" / "tritonserver"
    backends = root / f"backends-{interpreter.VERSION}"
    target = backends / "python"
    stub = server / "python_backend_stubs" / interpreter.VERSION / STUB_NAME
    library = server / "backends" / "python" / "libtriton_python.so"
    utils = _PROLOGUE + (server / "backends" / "python" / _UTILS_NAME).read_text()
    with exclusive(root / f"{backends.name}.lock"):
        target.mkdir(parents=True, exist_ok=True)
        for source in (stub, library):
            copy = target / source.name
            if not copy.exists() or copy.stat().st_size != source.stat().st_size:
                copy.unlink(missing_ok=True)
                shutil.copy2(source, copy)
        copy = target / _UTILS_NAME
        if not copy.exists() or copy.read_text() != utils:
            copy.unlink(missing_ok=True)
            copy.write_text(utils)
    return backends


def describe(installation: TritonInstallation) -> str:
    """One JSON line for logs and bug reports."""
    return json.dumps(
        {
            "binary": str(installation.binary),
            "version": installation.version,
            "source": installation.source,
            "stub": str(installation.stub),
        }
    )
