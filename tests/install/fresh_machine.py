"""A bare Debian 12 root in which an ordinary user with an empty home can run a command.

Needs root, debootstrap and unshare. All mounts are made in a mount namespace of their own, so none
of them outlives the command, however it ends.
"""

import ast
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("git", "make", "curl", "ca-certificates", "python3", "python3-venv")
USER_ID = 1000

_INSIDE = r"""
set -eu
mount --make-rprivate /
mount -t proc proc "$ROOT/proc"
mount -t tmpfs -o mode=1777,size=256m tmpfs "$ROOT/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620 devpts "$ROOT/dev/pts"
mount --bind "$ROOT/dev/pts/ptmx" "$ROOT/dev/ptmx"
while IFS= read -r path; do
  [ -n "$path" ] || continue
  mount --bind "$path" "$ROOT$path"
  mount -o remount,bind,ro "$ROOT$path"
done < "$BINDS"
set +e
chroot "$ROOT" setpriv --reuid {uid} --regid {uid} --clear-groups env -i {environment} \
  bash -c {command}
code=$?
left=0
for folder in /proc/[0-9]*; do
  [ "$(stat -c %u "$folder" 2>/dev/null)" = {uid} ] || continue
  left=1
  echo "LEFT RUNNING: $(tr '\0' ' ' < "$folder/cmdline")"
done
for file in "$ROOT"/dev/shm/*; do
  [ -e "$file" ] && left=1 && echo "LEFT IN SHARED MEMORY: $file"
done
[ "$left" = 0 ] && echo "NOTHING LEFT"
exit $code
"""


@dataclass(frozen=True)
class PipSetup:
    """How pip reaches packages on this machine, to be repeated inside the root."""

    config: str
    environment: Mapping[str, str]
    paths: tuple[Path, ...] = field(default=())


@dataclass(frozen=True)
class FreshMachine:
    """The root's folder and pip's set-up in it."""

    root: Path
    pip: PipSetup

    def run(self, command: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a shell command as the ordinary user; says at the end what was left running."""
        environment = {
            "HOME": "/home/user",
            "USER": "user",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            **self.pip.environment,
        }
        words = " ".join(shlex.quote(f"{name}={value}") for name, value in environment.items())
        script = _INSIDE
        for name, value in {
            "{uid}": str(USER_ID),
            "{environment}": words,
            "{command}": shlex.quote(f"cd ~ && {command}"),
        }.items():
            script = script.replace(name, value)
        binds = self.root.parent / "binds"
        binds.write_text("".join(f"{path}\n" for path in self.pip.paths))
        return subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
            + ["bash", "-c", script],
            env={**os.environ, "ROOT": str(self.root), "BINDS": str(binds)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )

    def clone_project(self, source: Path) -> None:
        """Put a bare clone of the project's HEAD at /srv/project.git, owned by the user."""
        target = self.root / "srv" / "project.git"
        _run("git", "clone", "--quiet", "--bare", str(source), str(target))
        _run("chown", "-R", f"{USER_ID}:{USER_ID}", str(target))


@contextmanager
def fresh_machine(folder: Path) -> Iterator[FreshMachine]:
    """Debootstrap a root below ``folder``; removed at the end."""
    root = folder / "root"
    pip = pip_setup()
    try:
        _run(
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            "bookworm",
            str(root),
        )
        _run("chroot", str(root), "useradd", "-m", "-u", str(USER_ID), "-s", "/bin/bash", "user")
        for name in ("resolv.conf", "hosts"):
            shutil.copyfile(Path("/etc") / name, root / "etc" / name)
        (root / "etc" / "pip.conf").write_text(pip.config)
        for path in pip.paths:
            _mount_point(path, Path(f"{root}{path}"))
        yield FreshMachine(root, pip)
    finally:
        # Mounts lived in namespaces that are gone; staying on one file system is a second safety.
        subprocess.run(["rm", "-rf", "--one-file-system", str(root)], check=False)


def _mount_point(source: Path, target: Path) -> None:
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()


def pip_setup() -> PipSetup:
    """Read pip's configuration: its lines, PIP_ variables and the local paths that both name."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    lines: list[str] = []
    values: list[str] = []
    for line in listing.stdout.splitlines():
        name, _, quoted = line.partition("=")
        value = str(ast.literal_eval(quoted))
        values.append(value)
        section, _, key = name.partition(".")
        if section in ("global", "user", "site"):
            lines.append(f"{key} = {' '.join(value.split())}\n")
    variables = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    words = [word for value in [*values, *variables.values()] for word in value.split()]
    paths = {found for word in words if (found := _local_path(word)) is not None}
    return PipSetup("[global]\n" + "".join(lines), variables, tuple(sorted(paths)))


def _local_path(word: str) -> Path | None:
    path = Path(word.removeprefix("file://"))
    if not path.is_absolute() or not path.exists():
        return None
    # The pages of a local index point to files beside it.
    return path.parent if path.name == "simple" else path


def _run(*command: str) -> None:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode:
        tail = "\n".join(result.stdout.splitlines()[-15:])
        raise RuntimeError(f"{command[0]} failed with {result.returncode}:\n{tail}")
