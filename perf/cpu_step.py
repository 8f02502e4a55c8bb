"""`python -m perf.cpu_step`: the CPU's fast path against the plain definitions of the same model.

All sides run in one process and take turns, so that they see the same load. With one thread, times
are processor time, which other programs change less than the clock on the wall. Nothing is printed
when results differ by more than what the dtype explains.
"""

import csv
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

from blockdiff.errors import BlockdiffError, ConfigError
from blockdiff.kernel_choice import read_choices, use_kernels
from blockdiff.models.hybrid import HybridModel
from blockdiff_kernels.implementation import spell_choices, using
from perf.command import run_command
from perf.cpu_parts import parts, step_flops, whole_step
from perf.random_model import KEYS, random_model
from perf.tables import markdown

EXAMPLES = """Examples:

    python -m perf.cpu_step                       # 32 and 256 rows; minutes

    python -m perf.cpu_step --rows 32 --repeats 3

    python -m perf.cpu_step --csv cpu_step.csv --threads 2
"""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PLAIN, FAST = "reference", "auto"
# of the norm, against the float32 definition of the same weights: of one op, and of a whole step
# against the error that the definition in the same dtype makes itself
PART_LIMITS = {"fp32": 2e-6, "bf16": 8e-3}
STEP_LIMIT, STEP_FACTOR = 2e-5, 1.25
GEMM = 2048
MOST_ROWS = 1 << 14
STEP = "whole step"
HEAD = ("rows", "what", "times", "fp32 definition", "fp32", "ratio", "bf16 definition", "bf16")
HEAD_RATES = ("ratio", "bf16 against fp32 definition", "bf16 GFLOP/s", "of the GEMM rate")


class Side(NamedTuple):
    """One way to compute; ``kernels`` as the flag of that name."""

    dtype: str
    kernels: str


SIDES = [Side(dtype, kernels) for dtype in DTYPES for kernels in (PLAIN, FAST)]


@dataclass(frozen=True)
class Line:
    """Seconds by side of one thing."""

    rows: int
    name: str
    times: int
    flops: float
    seconds: dict[Side, float]
    errors: dict[Side, float]

    def ratio(self, slow: Side, fast: Side) -> float:
        return self.seconds[slow] / self.seconds[fast]


def run(
    rows: Annotated[str, typer.Option(help="Rows of a step, multiples of 32.")] = "32,256",
    repeats: Annotated[
        int, typer.Option(min=1, max=10_000, help="Turns of each side; medians count.")
    ] = 7,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="CPU threads.")] = 1,
    csv_file: Annotated[str | None, typer.Option("--csv", help="Write the lines there.")] = None,
    kernels: Annotated[str, typer.Option(help="The fast side's choices.")] = FAST,
) -> None:
    """Time a denoising step and its parts on a random model of 0.6 G parameters."""
    counts = _counts(rows)
    if spell_choices(read_choices("kernels", kernels)) == PLAIN:
        raise ConfigError(f"kernels: {PLAIN} is what they are compared with; give others")
    if csv_file is not None:
        _check_csv(Path(csv_file))
    use_kernels(kernels, "cpu")
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    sides = [Side(dtype, kernels if way == FAST else way) for dtype, way in SIDES]
    with _progress(len(sides) + 2 * len(counts)) as done:
        models = {side: _load(side, done) for side in sides}
        lines, rates = [], []
        for count in counts:
            lines += _measure_parts(models, count, repeats, clock)
            done()
            found, rate = _measure_step(models, count, repeats, clock)
            lines.append(found)
            rates.append(rate)
            done()
    rate = {name: statistics.median(own[name] for own in rates) for name in DTYPES}
    print(_table(lines, rate))
    if csv_file is not None:
        _write(csv_file, lines, rate)


def _counts(rows: str) -> list[int]:
    block = KEYS["block_size"]
    try:
        counts = [int(word) for word in rows.split(",")]
    except ValueError:
        raise ConfigError(f"rows: {rows!r} must be numbers with commas between them") from None
    if any(count % block or not block <= count <= MOST_ROWS for count in counts):
        raise ConfigError(f"rows: {rows!r} must be multiples of {block}, {block} to {MOST_ROWS}")
    return counts


def _check_csv(path: Path) -> None:
    """Raise ConfigError for a file that could not be written after minutes of measuring."""
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"csv: {path} must be a file in a folder that exists")


def _load(side: Side, done: Callable[[], None]) -> HybridModel:
    with using(side.kernels):
        model = random_model(DTYPES[side.dtype])
    done()
    return model


def _measure_parts(
    models: dict[Side, HybridModel], count: int, repeats: int, clock: Callable[[], float]
) -> list[Line]:
    slots = count // KEYS["block_size"]
    found = {side: parts(model, slots) for side, model in models.items()}
    lines = []
    for number, part in enumerate(next(iter(found.values()))):
        works = {side: own[number].work for side, own in found.items()}
        seconds, results = _take_turns(works, repeats, clock)
        errors = _errors(results)
        for side, error in errors.items():
            own = errors[Side(side.dtype, PLAIN)]
            _refuse(part.name, side, error, max(PART_LIMITS[side.dtype], STEP_FACTOR * own))
        lines.append(Line(count, part.name, part.times, part.flops, seconds, errors))
    return lines


def _measure_step(
    models: dict[Side, HybridModel], count: int, repeats: int, clock: Callable[[], float]
) -> tuple[Line, dict[str, float]]:
    """The step, and this machine's GEMM rates in FLOP/s, measured in between."""
    slots = count // KEYS["block_size"]
    works = {side: whole_step(model, slots) for side, model in models.items()}
    gemms = {Side(name, "gemm"): _gemm(dtype) for name, dtype in DTYPES.items()}
    seconds, results = _take_turns(works | gemms, repeats, clock)
    errors = _errors({side: results[side] for side in works})
    for side, error in errors.items():
        own = errors[Side(side.dtype, PLAIN)]
        _refuse(STEP, side, error, max(STEP_LIMIT, STEP_FACTOR * own))
    rates = {side.dtype: 2 * GEMM**3 / seconds[side] for side in gemms}
    flops = step_flops(next(iter(models.values())), slots)
    return Line(count, STEP, 1, flops, {side: seconds[side] for side in works}, errors), rates


def _gemm(dtype: torch.dtype) -> Callable[[], Tensor]:
    left, right = (torch.randn(GEMM, GEMM).to(dtype) for _ in range(2))
    return lambda: left @ right


@torch.inference_mode()
def _take_turns(
    works: dict[Side, Callable[[], Tensor]], repeats: int, clock: Callable[[], float]
) -> tuple[dict[Side, float], dict[Side, Tensor]]:
    """Median seconds and the last result by side; a first turn of each is not counted."""
    samples: dict[Side, list[float]] = {side: [] for side in works}
    results = {}
    for turn in range(repeats + 1):
        for side, work in works.items():
            with using(side.kernels if side.kernels != "gemm" else PLAIN):
                began = clock()
                results[side] = work()
                if turn:
                    samples[side].append(clock() - began)
    return {side: statistics.median(own) for side, own in samples.items()}, results


def _errors(results: dict[Side, Tensor]) -> dict[Side, float]:
    """|result - float32 definition| / |float32 definition|."""
    exact = results[Side("fp32", PLAIN)].double()
    return {
        side: float((own.double() - exact).norm() / exact.norm()) for side, own in results.items()
    }


def _refuse(name: str, side: Side, error: float, limit: float) -> None:
    if not error <= limit:
        raise BlockdiffError(
            f"{name}, {side.dtype} with kernels {side.kernels}: differs by {error:.2g} of the norm "
            f"from the float32 definition, at most {limit:.2g} is allowed; nothing is reported"
        )


def _table(lines: list[Line], rate: dict[str, float]) -> str:
    speeds = ", ".join(f"{name} {own / 1e9:.0f} GFLOP/s" for name, own in rate.items())
    cells = [_cells(line, rate["bf16"]) for line in lines]
    head = f"Milliseconds of one call. GEMM of {GEMM}, measured between the steps: {speeds}."
    return f"{head}\n\n{markdown((*HEAD, *HEAD_RATES), cells)}"


def _cells(line: Line, rate: float) -> list[str]:
    wide, fast_wide, narrow, fast = line.seconds
    speed = line.flops / line.seconds[fast]
    milliseconds = [f"{1e3 * line.seconds[side]:.2f}" for side in line.seconds]
    return [
        str(line.rows),
        line.name,
        str(line.times),
        *milliseconds[:2],
        f"{line.ratio(wide, fast_wide):.2f}",
        *milliseconds[2:],
        f"{line.ratio(narrow, fast):.2f}",
        f"{line.ratio(wide, fast):.2f}",
        f"{speed / 1e9:.0f}" if line.flops else "",
        f"{speed / rate:.0%}" if line.flops else "",
    ]


def _write(path: str, lines: list[Line], rate: dict[str, float]) -> None:
    try:
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            fields = ("rows", "what", "times", "flops", "dtype", "kernels", "seconds", "error")
            writer.writerow((*fields, "gemm_flops_per_second"))
            for line in lines:
                own = (line.rows, line.name, line.times, line.flops)
                for side, spent in line.seconds.items():
                    writer.writerow((*own, *side, spent, line.errors[side], rate[side.dtype]))
    except OSError as error:
        raise ConfigError(f"csv: cannot write {path} ({error.strerror})") from error


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, only on a terminal; yields what to call after each stage."""
    columns = (TextColumn("models and measurements"), MofNCompleteColumn(), TimeElapsedColumn())
    hidden = not sys.stderr.isatty()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)


if __name__ == "__main__":
    run_command("cpu_step", run, EXAMPLES)
