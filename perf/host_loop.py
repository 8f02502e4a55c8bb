"""`python -m perf.host_loop`: what the engine itself costs in a round, beside the model's forward.

Two measurements: the engine's share of a round of the demo model at 8 slots, and the microseconds
of a round at 64 slots whose forward costs nothing. Runs the engine alone, without a server.
"""

import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import typer
from rich.console import Console
from rich.table import Table

from blockdiff.cli.loading import load_tokenizer, load_with_progress
from blockdiff.core import DecodingParams, Request
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import BlockdiffError, ConfigError
from blockdiff.models.base import BlockDiffusionModel
from blockdiff.serving.messages import parse_messages
from perf.command import run_command
from perf.stages import OTHER, STAGES, Stopwatch, cpu_clock, watched
from perf.stub_model import EOS, StubModel

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINT = ROOT / "demo" / "checkpoint"
SHARE_TARGET = 0.05
MICROSECONDS_TARGET = 300.0
WARM_UP_ROUNDS = 100
WINDOWS = 8
PROMPT_LENGTH = 32


def play(engine: Engine, requests: Iterator[Request]) -> None:
    """One round of an engine that is always full."""
    while engine.free_slots:
        engine.add_request(next(requests))
    for result in engine.step():
        if result.error is not None:
            raise BlockdiffError(f"a request failed: {result.error}")


def engine_share(checkpoint: Path, slots: int, rounds: int) -> dict[str, Any]:
    """Time of a round outside ``model.hidden`` and ``model.head``, over all of it: medians."""
    model = load_with_progress(checkpoint, "cpu", "float32")
    engine = Engine(model, EngineConfig(max_slots=slots, max_context=256))
    stopwatch = Stopwatch(time.perf_counter)
    for name in ("hidden", "head"):
        setattr(model, name, stopwatch.timed("forward", getattr(model, name)))
    requests = demo_requests(checkpoint)
    shares, seconds = [], []
    for number in range(rounds + 10):
        stopwatch.seconds.clear()
        began = time.perf_counter()
        play(engine, requests)
        spent = time.perf_counter() - began
        if number >= 10:
            seconds.append(spent)
            shares.append(1 - stopwatch.seconds["forward"] / spent)
    return {
        "slots": slots,
        "rounds": rounds,
        "round_ms": 1e3 * statistics.median(seconds),
        "share": statistics.median(shares),
        "share_target": SHARE_TARGET,
    }


def demo_requests(checkpoint: Path) -> Iterator[Request]:
    """The evaluation prompts again and again, 64 tokens each."""
    tokenizer = load_tokenizer(checkpoint)
    if tokenizer is None:
        raise ConfigError(f"model: {checkpoint} has no tokenizer; give the demo checkpoint")
    lines = (checkpoint / "eval_prompts.jsonl").read_text("utf-8").splitlines()
    prompts = [
        tokenizer.apply_chat_template(parse_messages(json.dumps(json.loads(line)["messages"])))
        for line in lines[::4]
    ]
    for uid in itertools.count():
        ids = tuple(prompts[uid % len(prompts)])
        yield Request(uid, ids, max_tokens=64, ignore_eos=True)


def stub_requests(slots: int, block_length: int, steps: int) -> Iterator[Request]:
    """Answers of eight blocks of ``steps`` previews each; the first ones end one after another."""
    decoding = DecodingParams(denoise_steps=steps)
    draw = random.Random(0)
    longest = 8 * block_length
    for uid in itertools.count():
        is_first = uid < slots
        tokens = 1 + (uid + 1) * longest // slots if is_first else longest
        # Prompts of their own: nothing is found among kept prefixes.
        prompt = tuple(draw.choices(range(EOS), k=PROMPT_LENGTH))
        yield Request(uid, prompt, tokens, ignore_eos=True, decoding=decoding)


def host_time(slots: int, rounds: int, block_length: int, steps: int) -> dict[str, Any]:
    """Microseconds of a round whose forward is free, by the wall and by the CPU clock.

    Each is the lowest median of ``WINDOWS`` windows: other programs make a window slower, never
    faster.
    """
    model = StubModel(block_length, slots * (block_length + PROMPT_LENGTH))
    config = EngineConfig(max_slots=slots, max_context=16 * block_length + PROMPT_LENGTH)
    engine = Engine(cast(BlockDiffusionModel, model), config)
    # Made before: what they cost is not the engine's.
    count = slots + (3 * rounds + WARM_UP_ROUNDS) * slots // (8 * steps) + slots
    requests = iter(list(itertools.islice(stub_requests(slots, block_length, steps), count)))

    def clocked(clock: Callable[[], float]) -> float:
        times = []
        for _ in range(rounds // WINDOWS):
            began = clock()
            play(engine, requests)
            times.append(1e6 * (clock() - began))
        return statistics.median(times)

    for _ in range(WARM_UP_ROUNDS):
        play(engine, requests)
    return {
        "slots": slots,
        "rounds": rounds,
        "block_length": block_length,
        "steps": steps,
        "wall_us": min(clocked(time.perf_counter) for _ in range(WINDOWS)),
        "cpu_us": min(clocked(cpu_clock) for _ in range(WINDOWS)),
        "target_us": MICROSECONDS_TARGET,
        "stages_us": min(
            (stage_times(engine, requests, rounds // WINDOWS) for _ in range(WINDOWS)),
            key=lambda stages: sum(stages.values()),
        ),
    }


def stage_times(engine: Engine, requests: Iterator[Request], rounds: int) -> dict[str, float]:
    """CPU microseconds of a round by stage, means over ``rounds``; watching adds some."""
    stopwatch = Stopwatch(cpu_clock)
    whole = stopwatch.timed(OTHER, play)
    with watched(stopwatch):
        for _ in range(rounds):
            whole(engine, requests)
    names = [stage for stage, *_ in STAGES]
    return {name: 1e6 * stopwatch.seconds[name] / rounds for name in names}


def show(results: dict[str, Any]) -> None:
    """Both measurements for a person."""
    console = Console(highlight=False)
    share, host = results["share"], results["host"]
    console.print(
        f"demo model, {share['slots']} slots: a round takes {share['round_ms']:.1f} ms, "
        f"{share['share']:.1%} of it outside the forward (target {share['share_target']:.0%})"
    )
    console.print(
        f"free forward, {host['slots']} slots, blocks of {host['block_length']} in {host['steps']} "
        f"previews: {host['cpu_us']:.0f} us a round on the CPU, {host['wall_us']:.0f} us by the "
        f"wall (target {host['target_us']:.0f})"
    )
    table = Table("stage", "us")
    for stage, spent in host["stages_us"].items():
        table.add_row(stage, f"{spent:.0f}")
    console.print(table)


def run(
    model: Annotated[Path, typer.Option(help="Checkpoint of the first measurement.")] = CHECKPOINT,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds with the model.")] = 200,
    stub_rounds: Annotated[
        int, typer.Option(min=WINDOWS, help="Rounds with a free forward.")
    ] = 2000,
    slots: Annotated[int, typer.Option(min=1, help="Slots of the second measurement.")] = 64,
    block_length: Annotated[int, typer.Option(min=1)] = 32,
    steps: Annotated[int, typer.Option(min=1, help="Previews of a block.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON.")] = False,
) -> None:
    """Measure the engine's own time in a round, and show where it goes."""
    torch.set_num_threads(1)
    results = {
        "share": engine_share(model, 8, rounds),
        "host": host_time(slots, stub_rounds, block_length, steps),
    }
    if as_json:
        typer.echo(json.dumps(results))
    else:
        show(results)


if __name__ == "__main__":
    run_command("host_loop", run)
