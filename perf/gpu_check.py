"""Are the kernels right on this GPU, and how far from its limits are they? In six minutes.

    python -m perf.gpu_check --out results
    python -m perf.gpu_check --out results --ops moe,head --no-steps
    TRITON_INTERPRET=1 python -m perf.gpu_check --out results --device cpu --tiny

Every op's kernel is first compared with its definition in float64 at production sizes. One red
check ends the run: no time is shown then. Runs from a clone where torch, triton, numpy and
tokenizers can be imported; draws a picture where matplotlib can.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from blockdiff.errors import ConfigError
from perf.gpu.cases import CASES
from perf.gpu.checking import CheckPlan, run_checks
from perf.gpu.measuring import Bench, measure_ops, measure_steps
from perf.gpu.report import Measured, draw, facts, line, write_csv
from perf.gpu.sizes import FULL, TINY
from perf.gpu.step import STEP_LABEL
from perf.gpu.timing import CudaTimer, Deadline, NoTimer, Timer

MOST_SECONDS, MOST_WORKERS = 86_400, 256
WEIGHTS = ("bfloat16", "fp8", "int4")


def gpu_check(given: argparse.Namespace) -> int:
    """Check every kernel, then time it beside what the device allows; returns the exit code."""
    device = check_device(given.device, given.tiny)
    sizes, ops = TINY if given.tiny else FULL, check_ops(given.ops)
    check_limits(given)
    deadline = Deadline(given.seconds)
    plan = CheckPlan(str(device), given.tiny, tuple(ops), given.steps)
    verdicts = run_checks(plan, given.workers, deadline)
    if any(not verdict.is_right for verdict in verdicts):
        print("no times: a check is red")
        return 1
    if not verdicts:
        print("no times: there was no time for a check; give more --seconds")
        return 1
    errors = {verdict.label: verdict.error for verdict in verdicts}
    bench = Bench(sizes, device, make_timer(device), deadline, errors)
    found = _shown(measure_ops(bench, ops))
    if given.steps and STEP_LABEL in errors:
        found += _shown(measure_steps(bench, WEIGHTS))
    about = facts(device)
    write_csv(given.out / "gpu_check.csv", found, about)
    has_picture = draw(given.out / "gpu_check.png", found, about)
    print(f"written: {given.out / 'gpu_check.csv'}" + (", gpu_check.png" if has_picture else ""))
    for name in deadline.left_out:
        print(f"left out: {name}")
    return 0


def _shown(measured: Iterator[Measured]) -> list[Measured]:
    found = []
    for one in measured:
        print(line(one), flush=True)
        found.append(one)
    return found


def check_device(name: str, tiny: bool) -> torch.device:
    """The device; ConfigError where kernels cannot run on it."""
    if name == "cpu":
        if not tiny:
            raise ConfigError("--device cpu: only with --tiny, as kernels are interpreted there")
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise ConfigError("--device cpu: needs TRITON_INTERPRET=1 in the environment")
    elif not name.startswith("cuda"):
        raise ConfigError(f"--device {name}: allowed are cuda and cpu")
    elif not torch.cuda.is_available():
        raise ConfigError("--device cuda: no GPU is here; try --device cpu --tiny")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"--device {name}: allowed are cuda and cpu") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name}: only {torch.cuda.device_count()} GPUs are here")
    return device


def check_limits(given: argparse.Namespace) -> None:
    """Make the folder; ConfigError for numbers out of range or a folder that cannot be."""
    if not 0 < given.seconds <= MOST_SECONDS:
        raise ConfigError(f"--seconds {given.seconds}: must be more than 0, up to {MOST_SECONDS}")
    if not 1 <= given.workers <= MOST_WORKERS:
        raise ConfigError(f"--workers {given.workers}: must be from 1 to {MOST_WORKERS}")
    try:
        given.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {given.out}: no folder can be there ({error.strerror})") from None


def check_ops(text: str) -> list[str]:
    """Names of ops; ConfigError for one that has no cases."""
    named = dict.fromkeys(op.strip() for op in text.split(","))
    unknown = [op for op in named if op not in CASES]
    if unknown:
        raise ConfigError(f"--ops {unknown[0]!r}: not known; some of {', '.join(CASES)}")
    return list(named)


def make_timer(device: torch.device) -> Timer:
    """Interpreted kernels are not timed."""
    return NoTimer() if device.type == "cpu" else CudaTimer(device)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; ends the program where it makes no sense."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m perf.gpu_check", description=__doc__, formatter_class=form
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for gpu_check.csv and gpu_check.png")
    add("--device", default="cuda", help="cuda, or cpu with --tiny (%(default)s)")
    add("--tiny", action="store_true", help="small sizes; for the interpreter, times nothing")
    add("--ops", default=",".join(CASES), help="only these (default: %(default)s)")
    add(
        "--seconds",
        type=float,
        default=330.0,
        help="begin no case later (%(default)s)",
    )
    add("--no-steps", dest="steps", action="store_false", help="leave out whole steps")
    add("--workers", type=int, default=6, help="processes that compile and check (%(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    try:
        sys.exit(gpu_check(parse(sys.argv[1:])))
    except ConfigError as error:
        sys.exit(f"error: {error}")
