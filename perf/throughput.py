"""`python -m perf.throughput`: this engine against public CPU loops on the same random weights.

Writes the checkpoints, starts the sides, asks all for the same, prints tables. What is measured
and how it is compared is in ``perf.comparison``; what a side is, in ``perf.sides``.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from blockdiff.errors import BlockdiffError, ConfigError
from perf.checkpoints import MASKED, ModelSize, write_checkpoint
from perf.command import run_command
from perf.comparison import Row, Workload, compare
from perf.peers.protocol import Peer
from perf.sides import KINDS, OURS, check_names, open_sides
from perf.tables import forwards_table, speed_table

EXAMPLES = """Examples:

    python -m perf.throughput                     # every peer; many minutes

    python -m perf.throughput --short             # `make bench`: a smaller model, no downloads

    python -m perf.throughput --peers sdar-loop --concurrency 1 --format json > run.json
"""
SMALL = ModelSize(hidden=128, layers=3, head_dim=16, inner=128, vocabulary=2048)


class Format(str, Enum):
    table = "table"
    json = "json"


@dataclass(frozen=True)
class Plan:
    """What a run measures."""

    size: ModelSize
    peers: list[str]
    levels: list[int]
    thresholds: list[float]
    repeats: int
    threads: int
    gap: float | None
    workload: Workload

    @property
    def runs(self) -> int:
        """Single jobs, for the progress bar."""
        families = {KINDS[name].family for name in self.peers}
        scenarios = 2 * len(self.levels) - (1 in self.levels)
        masked = [name for name in self.peers if KINDS[name].has_thresholds]
        return scenarios * self.repeats * (len(self.peers) + len(families)) + len(
            self.thresholds
        ) * (len(masked) + bool(masked))


def run(
    short: Annotated[bool, typer.Option("--short", help="A smaller model and fewer runs.")] = False,
    peers: Annotated[str | None, typer.Option(help=f"Of {', '.join(KINDS)}; all.")] = None,
    concurrency: Annotated[str, typer.Option(help="Requests at the same time.")] = "1,4,8",
    thresholds: Annotated[str, typer.Option(help="For the table of forwards.")] = "0.95,0.7,0.3",
    repeats: Annotated[int | None, typer.Option(min=1, help="Runs of each; 3, short: 1.")] = None,
    prompt: Annotated[int | None, typer.Option(min=1, help="Tokens; 512, short: 256.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output tokens of a request.")] = 64,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a block of 32.")] = 8,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of every side.")] = 1,
    gap: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds between arrivals; a quarter of our own time alone."),
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="What is printed.")] = Format.table,
) -> None:
    """Tokens per second, forwards and tokens of all sides."""
    size = SMALL if short else ModelSize()
    names = _peer_names(peers, short)
    prompt_tokens = prompt or (256 if short else 512)
    if prompt_tokens % size.block or max_tokens % size.block:
        raise ConfigError(f"prompt, max-tokens: only multiples of the block, {size.block}")
    plan = Plan(
        size=size,
        peers=names,
        levels=_numbers(concurrency, int),
        thresholds=_numbers(thresholds, float),
        repeats=repeats or (1 if short else 3),
        threads=threads,
        gap=gap,
        workload=Workload(
            prompt_tokens, max_tokens, size.block, steps, size.vocabulary, size.vocabulary - 1
        ),
    )
    with tempfile.TemporaryDirectory(prefix="blockdiff-throughput-") as folder:
        speeds, forwards = measure(plan, Path(folder))
    if output is Format.json:
        rows = {"speed": speeds, "forwards": forwards}
        print(json.dumps({key: [row.as_dict() for row in value] for key, value in rows.items()}))
        return
    print(speed_table(speeds), forwards_table(forwards), sep="\n\n")


def measure(plan: Plan, folder: Path) -> tuple[list[Row], list[Row]]:
    """Rows of tokens per second and rows of forwards by threshold."""
    families = {KINDS[name].family for name in plan.peers}
    folders = {name: write_checkpoint(folder / name, name, plan.size) for name in families}
    log_file = folder / "peers.log"
    try:
        with (
            log_file.open("w") as log,
            _progress(plan.runs) as done,
            open_sides(plan.peers, folders, plan.threads, log) as sides,
        ):
            speeds = _measure_speeds(plan, sides, done)
            forwards = _measure_thresholds(plan, sides, done)
    except BlockdiffError as error:
        last = log_file.read_text().strip().splitlines()[-3:]
        raise BlockdiffError(f"{error}: {' | '.join(last)}") from error
    return speeds, forwards


def _measure_speeds(
    plan: Plan, sides: dict[str, dict[str, Peer]], done: Callable[[], None]
) -> list[Row]:
    rows = []
    for family, own in sides.items():
        alone = plan.workload.job([0.0])
        for peer in own.values():
            # the first run of a process pays for what later ones find ready
            peer.run(replace(alone, max_tokens=plan.workload.block_length))
        gap = plan.gap if plan.gap is not None else own[OURS].run(alone).seconds / 4
        for level in plan.levels:
            for name, step in (("together", 0.0), ("staggered", gap)):
                if level == 1 and step:
                    continue
                job = plan.workload.job([number * step for number in range(level)], seed=level)
                rows += compare(f"{family}, {level} {name}", own, job, plan.repeats, done)
    return rows


def _measure_thresholds(
    plan: Plan, sides: dict[str, dict[str, Peer]], done: Callable[[], None]
) -> list[Row]:
    own = {
        name: peer
        for name, peer in sides.get(MASKED, {}).items()
        if name == OURS or KINDS[name].has_thresholds
    }
    rows = []
    for threshold in plan.thresholds if own else []:
        job = plan.workload.job([0.0], threshold, seed=1)
        rows += compare(f"threshold {threshold}", own, job, 1, done)
    return rows


def _peer_names(given: str | None, short: bool) -> list[str]:
    if given is not None:
        names = [word.strip() for word in given.split(",")]
        check_names(names)
        return names
    return [n for n, kind in KINDS.items() if not kind.needs_environment or not short]


def _numbers(text: str, kind: type[Any]) -> list[Any]:
    try:
        return [kind(word) for word in text.split(",") if word.strip()]
    except ValueError:
        raise ConfigError(f"{text!r}: numbers with commas between them are needed") from None


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr, only on a terminal; yields what to call after each run."""
    console = Console(stderr=True)
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("runs", total=total)
        yield lambda: progress.advance(task)


if __name__ == "__main__":
    run_command("throughput", run, EXAMPLES)
