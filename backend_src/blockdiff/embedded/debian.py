"""Fetches a shared library out of a Debian package without root. Knows apt, not what it is for."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from blockdiff.embedded.paths import cache_directory, exclusive


def can_fetch() -> bool:
    """True on Debian and its relatives, where apt-get and dpkg can unpack without root."""
    return shutil.which("apt-get") is not None and shutil.which("dpkg") is not None


def cached_package(package: str) -> Path | None:
    """Where ``package`` was unpacked before, if it was."""
    target = cache_directory() / "deb" / package
    return target if target.is_dir() else None


def fetch_package(package: str) -> Path | None:
    """Unpack ``package`` (not its dependencies) into the cache; None when apt cannot give it."""
    target = cache_directory() / "deb" / package
    if not can_fetch():
        return None
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.parent / f"{package}.lock"):
        if target.is_dir():
            return target
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=target.parent) as folder:
            archive = _download(package, Path(folder))
            fresh = Path(folder) / "root"
            if archive is None or not _run(["dpkg", "-x", str(archive), str(fresh)]):
                return None
            fresh.rename(target)
    return target


def _download(package: str, folder: Path) -> Path | None:
    """Try the machine's own package lists first, then fresh lists in a private state folder."""
    if not _run(["apt-get", "download", package], folder):
        state = folder / "state"
        for part in ("lists/partial", "cache/archives/partial"):
            (state / part).mkdir(parents=True)
        private = [f"-oDir::State::lists={state / 'lists'}", f"-oDir::Cache={state / 'cache'}"]
        if not _run(["apt-get", *private, "update"], folder):
            return None
        if not _run(["apt-get", *private, "download", package], folder):
            return None
    return next(folder.glob(f"{package}_*.deb"), None)


def _run(command: list[str], folder: Path | None = None) -> bool:
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0
