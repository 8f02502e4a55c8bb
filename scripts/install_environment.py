"""Makes the project's virtual environment: pinned packages, CPU torch where no GPU is, the server.

Run by the Makefile with the Python that the environment shall have. Uses the standard library only.
Set ALLOW_CUDA_TORCH=1 to accept the CUDA build of torch on a machine without a GPU.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
STAMP = VENV / ".installed"
CONSTRAINTS = ROOT / "constraints.txt"
INPUTS = (ROOT / "pyproject.toml", CONSTRAINTS, Path(__file__).resolve())
VERSIONS = ((3, 10), (3, 11), (3, 12))
TRITON = "triton"


class InstallError(Exception):
    """One line for the person who runs make."""


def main() -> int:
    """Install everything once; does nothing when the stamp matches."""
    try:
        if STAMP.exists() and STAMP.read_text() == fingerprint():
            STAMP.touch()
            return 0
        check_python()
        install()
    except InstallError as error:
        print(f"install: {error}", file=sys.stderr)
        return 2
    return 0


def fingerprint() -> str:
    """Changes when anything that decides the environment's content changes."""
    digest = hashlib.sha256(f"{sys.executable} {sys.version}".encode())
    for path in INPUTS:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check_python() -> None:
    """Refuse Pythons that the server has no stub for and Debian's Python without venv."""
    if sys.version_info[:2] not in VERSIONS:
        raise InstallError(
            f"Python {platform.python_version()}: 3.10, 3.11 and 3.12 work; "
            "choose one by make PYTHON=python3.11"
        )
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        raise InstallError(
            "this Python cannot make virtual environments: apt-get install python3-venv"
        ) from None


def install() -> None:
    """The steps, each with one line before it."""
    started = time.monotonic()
    step(1, f"virtual environment .venv with Python {platform.python_version()}")
    venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(VENV)
    torch = pinned("torch")
    check_torch(torch)
    step(2, f"{torch} (the largest download, about 200 MB)")
    free_triton = constraints_without(TRITON)
    pip("install", "--constraint", str(free_triton), torch)
    step(3, "packages pinned in constraints.txt")
    # The CUDA build of torch brings the triton it was made with; the CPU build brings none.
    constraints = free_triton if has_package(TRITON) else CONSTRAINTS
    pip("install", "--constraint", str(constraints), "setuptools", "wheel")
    extras = f"{ROOT}[eval,kernels,test]"
    # Building without isolation uses the pinned setuptools instead of fetching another.
    pip("install", "--no-build-isolation", "--constraint", str(constraints), "--editable", extras)
    step(4, "tritonserver and the shared libpython it needs")
    fetch_server()
    STAMP.write_text(fingerprint())
    print(f"install: done in {time.monotonic() - started:.0f} s", flush=True)


def step(number: int, text: str) -> None:
    """A progress line."""
    print(f"install: [{number}/4] {text}", flush=True)


def pinned(name: str) -> str:
    """The requirement of ``name`` in constraints.txt."""
    for line in CONSTRAINTS.read_text().splitlines():
        if line.startswith(f"{name}=="):
            return line.split(";")[0].strip()
    raise InstallError(f"constraints.txt has no line {name}==")


def constraints_without(name: str) -> Path:
    """A copy of constraints.txt in the environment that leaves the version of ``name`` open."""
    lines = CONSTRAINTS.read_text().splitlines(keepends=True)
    copy = VENV / f"constraints-without-{name}.txt"
    copy.write_text("".join(line for line in lines if not line.startswith(f"{name}==")))
    return copy


def has_package(name: str) -> bool:
    """Whether the environment has ``name``."""
    code = f"from importlib.metadata import version; version({name!r})"
    return subprocess.run([str(PYTHON), "-c", code], stderr=subprocess.DEVNULL).returncode == 0


def check_torch(requirement: str) -> None:
    """Refuse to fetch gigabytes of CUDA libraries for a machine that has no GPU."""
    if has_gpu() or os.environ.get("ALLOW_CUDA_TORCH") or platform.machine() != "x86_64":
        return
    report = pip("install", "--dry-run", "--no-deps", "--quiet", "--report", "-", requirement)
    found = json.loads(report)["install"]
    wheel = unquote(Path(found[0]["download_info"]["url"]).name) if found else ""
    if found and "+cpu" not in wheel:
        raise InstallError(
            f"no GPU here, but pip would take the CUDA build of torch ({wheel}, gigabytes with its "
            "libraries): point pip at CPU wheels (PIP_EXTRA_INDEX_URL=... or PIP_FIND_LINKS=...), "
            "try another Python (make PYTHON=python3.11), or accept it with ALLOW_CUDA_TORCH=1"
        )


def has_gpu() -> bool:
    """True when an NVIDIA driver is there."""
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists()


def fetch_server() -> None:
    """Unpack the server now, so that the first start is quick."""
    code = (
        "from blockdiff.embedded import find_installation\n"
        "from blockdiff.embedded.perf_analyzer import perf_analyzer_command\n"
        "from blockdiff.errors import BlockdiffError\n"
        "try:\n"
        "    say = lambda line: print('install:       ' + line, flush=True)\n"
        "    find_installation(say)\n"
        "    perf_analyzer_command(say)\n"
        "except BlockdiffError as error:\n"
        "    raise SystemExit(f'install: {error}')\n"
    )
    if subprocess.run([str(PYTHON), "-c", code]).returncode:
        raise InstallError("the server could not be set up (see the line above)")


def pip(*arguments: str) -> str:
    """Run pip in the environment; its output goes to the log and, on failure, to the terminal."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    with open(LOG, "a") as log:
        log.write(f"$ {' '.join(command)}\n{result.stdout}{result.stderr}\n")
    if result.returncode:
        tail = "\n".join(result.stderr.strip().splitlines()[-8:])
        print(tail, file=sys.stderr)
        raise InstallError(f"pip {arguments[0]} failed (full output: {LOG})")
    return result.stdout


if __name__ == "__main__":
    sys.exit(main())
