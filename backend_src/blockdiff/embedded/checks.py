"""Looks at one thing of this machine each and says ok, warn or fail with what to do.

Changes nothing and fetches nothing. Knows no checkpoint.
"""

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blockdiff.embedded import (
    debian,
    installation,
    interpreter,
    perf_analyzer,
    ports,
    shared_memory,
    unpack,
)
from blockdiff.errors import BlockdiffError, ConfigError

_FAST_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


@dataclass(frozen=True)
class Finding:
    """One line of `blockdiff doctor`. ``level``: ok, warn or fail; ``advice`` unless ok."""

    name: str
    level: str
    detail: str
    advice: str = ""


def guarded(name: str, check: Callable[[], Finding]) -> Finding:
    """Run a check; an expected error becomes a failed finding."""
    try:
        return check()
    except BlockdiffError as error:
        what, _, advice = str(error).partition("; ")
        return Finding(name, "fail", what, advice or "see the message")


def check_python() -> Finding:
    interpreter.check_version()
    return Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")


def check_libpython() -> Finding:
    if installation.installed_binary() is not None:
        return Finding("libpython", "ok", "not needed: the installed server brings its own")
    try:
        found = interpreter.find_libpython(fetch=False)
    except BlockdiffError:
        if not (interpreter.is_system_python() and debian.can_fetch()):
            return Finding("libpython", "fail", "missing", interpreter.missing_message())
        advice = f"nothing: the first start fetches {interpreter.PACKAGE} into the cache"
        return Finding("libpython", "warn", "not there yet", advice)
    return Finding("libpython", "ok", f"{found.path} ({found.source})")


def check_tritonserver() -> Finding:
    binary = installation.installed_binary()
    if binary is not None:
        found = installation.find_installation()
        return Finding("tritonserver", "ok", f"{found.version} at {binary}")
    root = unpack.unpacked_root()
    if unpack.is_unpacked(root):
        return Finding("tritonserver", "ok", f"{unpack.TRITON_VERSION} unpacked at {root}")
    state = "incomplete" if root.exists() else "not unpacked yet"
    advice = f"nothing: the first start fetches {unpack.WHEEL} (55 MB)"
    return Finding("tritonserver", "warn", state, advice)


def check_stub() -> Finding:
    if installation.installed_binary() is None and not unpack.is_unpacked(unpack.unpacked_root()):
        return Finding("python stub", "warn", "not there yet", "comes with tritonserver")
    try:
        if installation.installed_binary() is None:
            interpreter.find_libpython(fetch=False)
    except BlockdiffError:
        return Finding("python stub", "warn", "cannot be tried", "libpython is missing")
    found = installation.find_installation()
    missing = perf_analyzer.missing_libraries(found.stub, found.environment)
    if missing:
        return Finding("python stub", "fail", f"libraries {', '.join(missing)} missing", "install")
    return Finding("python stub", "ok", str(found.stub))


def check_shared_memory() -> Finding:
    free = shared_memory.shared_memory_free()
    detail = f"{free >> 20} MiB free in /dev/shm"
    if free < shared_memory.NEEDED:
        advice = f"enlarge it to {shared_memory.COMFORTABLE >> 20} MiB or more (--shm-size)"
        return Finding("shared memory", "fail", detail, advice)
    if free < shared_memory.COMFORTABLE:
        return Finding("shared memory", "warn", detail, "large prompts may not fit: enlarge it")
    return Finding("shared memory", "ok", detail)


def check_ports(host: str, wanted: tuple[int, ...]) -> Finding:
    impossible = [str(port) for port in wanted if not 0 <= port <= 65535]
    if impossible:
        return Finding("ports", "fail", f"{', '.join(impossible)}: allowed are 0 to 65535", "")
    try:
        ports.require_address(host)
    except ConfigError as error:
        what, _, advice = str(error).rpartition("; ")
        return Finding("ports", "fail", what, advice)
    taken = [str(port) for port in wanted if not ports.is_free(port, host)]
    shown = ", ".join(map(str, wanted))
    if taken:
        advice = "serve with --http-port/--grpc-port/--metrics-port 0, or end their owner"
        return Finding("ports", "warn", f"{', '.join(taken)} in use on {host}", advice)
    return Finding("ports", "ok", f"{shown} free on {host}")


def check_processor() -> Finding:
    flags = _processor_flags()
    known = [name for name in _FAST_FEATURES if name in flags]
    usable = len(os.sched_getaffinity(0))
    detail = f"{platform.machine()}, {usable} usable cores, {' '.join(known) or 'no avx2'}"
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > usable:
        advice = f"OMP_NUM_THREADS={given} is more than {usable} cores: threads will fight"
        return Finding("processor", "warn", detail, advice)
    if platform.machine() == "x86_64" and "avx2" not in flags:
        return Finding("processor", "warn", detail, "matrix products will be slow")
    return Finding("processor", "ok", detail)


def _processor_flags() -> set[str]:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return set(line.split(":", 1)[1].split())
    except OSError:
        pass
    return set()


def check_perf_analyzer() -> Finding:
    name = "perf_analyzer"
    try:
        binary = perf_analyzer.find_perf_analyzer()
    except BlockdiffError as error:
        return Finding(name, "warn", "not found", str(error))
    missing = perf_analyzer.missing_libraries(binary, perf_analyzer.library_environment())
    if missing:
        advice = "nothing: the first benchmark takes them from the unpacked server"
        return Finding(name, "warn", f"{binary}: {', '.join(missing)} not linked yet", advice)
    return Finding(name, "ok", str(binary))
