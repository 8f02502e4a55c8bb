"""`python -m perf.latency`: what a long prompt costs those who are already being answered.

Rounds that a prompt takes, and the time between blocks of eight running requests with and without
a newcomer. One engine on a random model, in this process.
"""

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from blockdiff.checkpoint import load_model
from blockdiff.core import DecodingParams, Request
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import ConfigError
from blockdiff.models.trunk import LanguageModel
from perf.checkpoints import MASKED, ModelSize, write_checkpoint
from perf.command import run_command
from perf.tables import markdown

SIZE = ModelSize(hidden=128, layers=3, head_dim=16, inner=128, vocabulary=2048, context=8192)
RUNNING = 8
NEWCOMER = 100
EXAMPLES = """Examples:

    python -m perf.latency

    python -m perf.latency --budget 128,512,2048 --newcomer 4096
"""


@dataclass
class Trace:
    """What a run of the engine was seen to do: one entry per round."""

    seconds: list[float] = field(default_factory=list)
    """Length of every round."""
    blocks: dict[int, list[int]] = field(default_factory=dict)
    """By request: rounds at whose end a block came."""

    def between_blocks(self) -> tuple[list[int], list[float]]:
        """Rounds and seconds from each block of a running request to its next one."""
        rounds, seconds = [], []
        for uid, ends in self.blocks.items():
            for before, after in zip(ends, ends[1:], strict=False):
                if uid < RUNNING:
                    rounds.append(after - before)
                    seconds.append(sum(self.seconds[before + 1 : after + 1]))
        return rounds, seconds


@dataclass(frozen=True)
class Contrast:
    """Between blocks of the running requests, without and with the newcomer; p99 of all gaps."""

    rounds: tuple[float, float]
    seconds: tuple[float, float]
    round_seconds: float
    """Median length of a round without the newcomer."""
    newcomer_rounds: int
    """From the newcomer's admission to its first block."""


def make_engine(model: LanguageModel, budget: int, slots: int, threads: int = 1) -> Engine:
    """An engine that never finds a prefix again, since every prompt is random."""
    config = EngineConfig(max_slots=slots, prefill_token_budget=budget, num_threads=threads)
    return Engine(model, config)


def make_request(uid: int, prompt: int, max_tokens: int, steps: int) -> Request:
    """A greedy request whose prompt shares no beginning with those of other ``uid``s."""
    ids = [(uid * 97 + place * 31) % 1999 for place in range(prompt)]
    decoding = DecodingParams(denoise_steps=steps)
    return Request(uid, tuple(ids), max_tokens, ignore_eos=True, decoding=decoding)


def prompt_rounds(model: LanguageModel, budget: int, prompt: int) -> int:
    """Rounds until the first block of a request that is alone and takes one step a block."""
    engine = make_engine(model, budget, 1)
    engine.add_request(make_request(0, prompt, model.info.block_length, 1))
    rounds = 0
    while engine.has_work:
        engine.step()
        rounds += 1
    return rounds


def contrast(
    model: LanguageModel, budget: int, newcomer: int, blocks: int, threads: int
) -> Contrast:
    """``RUNNING`` requests of ``blocks`` blocks each, without and with a newcomer."""
    alone = _run(model, budget, None, blocks, threads)
    joined = _run(model, budget, newcomer, blocks, threads)
    (rounds, seconds), (more_rounds, more_seconds) = alone.between_blocks(), joined.between_blocks()
    started = joined.blocks[NEWCOMER][0]
    return Contrast(
        rounds=(_p99(rounds), _p99(more_rounds)),
        seconds=(_p99(seconds), _p99(more_seconds)),
        round_seconds=median(alone.seconds[1:]),
        newcomer_rounds=joined.blocks[NEWCOMER][1] - started,
    )


def _run(
    model: LanguageModel, budget: int, newcomer: int | None, blocks: int, threads: int
) -> Trace:
    engine, length = make_engine(model, budget, RUNNING + 1, threads), model.info.block_length
    for uid in range(RUNNING):
        engine.add_request(make_request(uid, length, blocks * length, 4))
    trace = Trace()
    while engine.has_work:
        # once everyone has had a block
        is_due = newcomer is not None and len(trace.blocks) == RUNNING
        if is_due and NEWCOMER not in trace.blocks:
            assert newcomer is not None, "it is due"
            engine.add_request(make_request(NEWCOMER, newcomer, length, 1))
            trace.blocks[NEWCOMER] = [len(trace.seconds) - 1]
        start = time.perf_counter()
        results = engine.step()
        trace.seconds.append(time.perf_counter() - start)
        for result in results:
            trace.blocks.setdefault(result.request_uid, []).append(len(trace.seconds) - 1)
    return trace


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def run(
    budget: Annotated[str, typer.Option(help="Prompt tokens of a round.")] = "128,512",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the lone prompt.")] = 4096,
    newcomer: Annotated[int, typer.Option(min=1, help="Tokens of the newcomer's prompt.")] = 2048,
    blocks: Annotated[int, typer.Option(min=4, help="Blocks of a running request.")] = 24,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
) -> None:
    """Rounds of a long prompt, and the time between blocks while another one arrives."""
    longest = SIZE.context - SIZE.block
    if max(prompt, newcomer) > longest:
        raise ConfigError(f"prompt, newcomer: at most {longest} fit into the random model")
    try:
        budgets = [int(word) for word in budget.split(",")]
    except ValueError:
        raise ConfigError(f"budget: {budget!r}; numbers with commas are needed") from None
    with tempfile.TemporaryDirectory(prefix="blockdiff-latency-") as folder:
        model = load_model(write_checkpoint(Path(folder), MASKED, SIZE))
    rows = [(b, prompt_rounds(model, b, prompt)) for b in budgets]
    found = [(b, contrast(model, b, newcomer, blocks, threads)) for b in budgets]
    print(_prompt_table(prompt, rows), _contrast_table(newcomer, found), sep="\n\n")


def _prompt_table(prompt: int, rows: list[tuple[int, int]]) -> str:
    head = ("budget", f"rounds of a {prompt:,}-token prompt", "prompt / budget, rounded up")
    return markdown(head, [(str(b), str(n), str(math.ceil(prompt / b))) for b, n in rows])


def _contrast_table(newcomer: int, rows: list[tuple[int, Contrast]]) -> str:
    head = (
        "budget",
        "between blocks, p99",
        "rounds",
        "ms",
        "in rounds of the eight alone",
        f"rounds to the first block of {newcomer:,} tokens",
    )
    cells = []
    for budget, found in rows:
        for number, name in enumerate(("alone", "with the newcomer")):
            seconds = found.seconds[number]
            own = (f"{found.rounds[number]}", f"{1000 * seconds:.0f}")
            relative = f"{seconds / found.round_seconds:.1f}"
            last = str(found.newcomer_rounds) if number else ""
            cells.append((str(budget), name, *own, relative, last))
    return markdown(head, cells)


if __name__ == "__main__":
    run_command("latency", run, EXAMPLES)
