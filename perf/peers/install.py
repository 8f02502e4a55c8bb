"""Makes the peers' own virtual environment, `.cache/peers`, from the pins beside this file.

    python -m perf.peers.install

Nothing of it enters the project's environment. Uses the standard library only.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".cache" / "peers"
PYTHON = FOLDER / "bin" / "python"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
TORCH = "torch==2.13.0"


class InstallError(Exception):
    """One line for the person who installs."""


def main() -> int:
    """Install everything; CPU torch first, so that nothing else can choose another."""
    try:
        venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(FOLDER)
        check_torch()
        pip("install", TORCH)
        # The pins are complete; some packages' own ranges exclude each other.
        pip("install", "--no-deps", "--requirement", str(REQUIREMENTS))
    except InstallError as error:
        print(f"perf.peers.install: {error}", file=sys.stderr)
        return 2
    print(f"perf.peers.install: {FOLDER} is ready")
    return 0


def check_torch() -> None:
    """Refuse the CUDA build, which brings gigabytes, unless ALLOW_CUDA_TORCH is set."""
    report = pip("install", "--dry-run", "--no-deps", "--quiet", "--report", "-", TORCH)
    address = json.loads(report)["install"][0]["download_info"]["url"]
    if "cpu" not in address.rpartition("/")[2] and not os.environ.get("ALLOW_CUDA_TORCH"):
        raise InstallError(
            f"pip would take the CUDA build of {TORCH}: point it at CPU wheels "
            "(PIP_EXTRA_INDEX_URL=... or PIP_FIND_LINKS=...), or set ALLOW_CUDA_TORCH=1"
        )


def pip(*arguments: str) -> str:
    """Run pip in the environment; returns what it prints."""
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise InstallError(f"pip {arguments[0]} failed: {' '.join(last)}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
