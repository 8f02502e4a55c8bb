"""`python -m perf.soak`: random requests in one engine, each compared with its run alone.

Lengths, parameters, priorities, cancels and deadlines are random, many prompts begin alike, and
memory is so short that requests are suspended. Knows the engine; knows nothing of servers.
"""

import json
import random
import resource
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, track

from blockdiff.checkpoint.load import load_model
from blockdiff.core import BlockResult, DecodingParams, FinishReason, Mode, Request, SamplingParams
from blockdiff.engine import Engine, EngineConfig
from blockdiff.models.base import BlockDiffusionModel
from perf.command import run_command

CHECKPOINT = Path(__file__).resolve().parents[1] / "demo" / "checkpoint"
CUT_SHORT = (FinishReason.CANCELLED, FinishReason.TIMEOUT)


@dataclass
class Report:
    """What a soak found; bytes are resident memory of this process."""

    requests: int = 0
    wrong: int = 0
    failed: int = 0
    cancelled: int = 0
    timed_out: int = 0
    suspensions: int = 0
    hit_tokens: int = 0
    queried_tokens: int = 0
    rounds: int = 0
    output_tokens: int = 0
    leaked_pages: int = 0
    leaked_lines: int = 0
    bytes_after_a_tenth: int = 0
    bytes_at_the_end: int = 0
    seconds: float = 0.0
    first_wrong: str = ""


def draw_requests(model: BlockDiffusionModel, count: int, seed: int) -> list[Request]:
    """Different requests, whose prompts begin with one of three prefixes or with none."""
    chance = random.Random(seed)
    tokens = range(min(model.info.vocab_size, 500))
    prefixes = [[chance.choice(tokens) for _ in range(96)] for _ in range(3)]
    found = []
    for _ in range(count):
        prompt = chance.choice(prefixes)[: chance.randrange(97)] if chance.random() < 0.7 else []
        prompt = [*prompt, *(chance.choice(tokens) for _ in range(chance.randrange(1, 40)))]
        found.append(
            Request(
                uid=0,
                input_ids=tuple(prompt),
                max_tokens=chance.randrange(1, 41),
                min_tokens=chance.choice([0, 0, 0, 1]),
                ignore_eos=chance.random() < 0.3,
                sampling=_sampling(chance),
                decoding=_decoding(chance, model),
                priority=chance.randrange(3),
            )
        )
    return found


def _sampling(chance: random.Random) -> SamplingParams:
    if chance.random() < 0.5:
        return SamplingParams()
    return SamplingParams(
        temperature=chance.uniform(0.2, 1.5),
        top_k=chance.choice([0, 5, 50]),
        top_p=chance.choice([1.0, 0.9]),
        seed=chance.randrange(1 << 32),
    )


def _decoding(chance: random.Random, model: BlockDiffusionModel) -> DecodingParams:
    if model.info.supports_autoregressive and chance.random() < 0.1:
        return DecodingParams(mode=Mode.AUTOREGRESSIVE)
    length = chance.choice([None, 1, 4, 7, 8, 16])
    if chance.random() < 0.3:
        steps = chance.randrange(1, 1 + min(4, length or model.info.block_length))
        return DecodingParams(block_length=length, denoise_steps=steps)
    return DecodingParams(block_length=length, threshold=chance.choice([None, 0.3, 0.7, 0.95]))


def run_alone(model: BlockDiffusionModel, requests: list[Request], config: EngineConfig) -> Any:
    """Output ids of every request, by itself in an engine that keeps no prefixes."""
    engine = Engine(model, replace(config, max_slots=1, prefix_cache=False, kv_cache_bytes=None))
    found = []
    for wanted in track(requests, description="alone"):
        engine.add_request(replace(wanted, uid=1))
        tokens: list[int] = []
        while engine.has_work:
            for result in engine.step():
                tokens += result.token_ids
        found.append(tokens)
    return found


def soak(engine: Engine, requests: list[Request], expected: Any, count: int, seed: int) -> Report:
    """Run ``count`` requests, drawn from ``requests``, with cancels and deadlines in between."""
    chance = random.Random(seed + 1)
    report, running = Report(requests=count), {}
    todo = deque(range(1, count + 1))
    started = time.monotonic()
    with Progress() as progress:
        task = progress.add_task("together", total=count)
        while todo or engine.has_work:
            while todo and engine.free_slots and chance.random() < 0.7:
                which = chance.randrange(len(requests))
                deadline = time.monotonic() + 0.05 if chance.random() < 0.03 else None
                uid = todo.popleft()
                engine.add_request(replace(requests[which], uid=uid, deadline=deadline))
                running[uid] = (which, list[BlockResult]())
            if running and chance.random() < 0.02:
                engine.cancel(chance.choice(list(running)))
            for result in engine.step():
                which, results = running[result.request_uid]
                results.append(result)
                if result.is_final:
                    del running[result.request_uid]
                    _judge(report, requests[which], expected[which], results)
                    progress.advance(task)
            if not report.bytes_after_a_tenth and len(todo) < 0.9 * count:
                report.bytes_after_a_tenth = _resident_bytes()
    report.seconds = time.monotonic() - started
    _count(report, engine)
    return report


def _judge(report: Report, wanted: Request, alone: list[int], results: list[BlockResult]) -> None:
    final = results[-1]
    found = [token for result in results for token in result.token_ids]
    report.failed += final.error is not None
    report.cancelled += final.finish_reason is FinishReason.CANCELLED
    report.timed_out += final.finish_reason is FinishReason.TIMEOUT
    right = alone[: len(found)] if final.finish_reason in CUT_SHORT else alone
    if found != right:
        report.wrong += 1
        report.first_wrong = report.first_wrong or f"{wanted}: {found}, alone {alone}"


def _count(report: Report, engine: Engine) -> None:
    counters, memory = engine.counters, engine._scheduler.memory
    report.bytes_at_the_end = _resident_bytes()
    for name in ("suspensions", "hit_tokens", "queried_tokens", "rounds", "output_tokens"):
        setattr(report, name, getattr(counters, name))
    report.leaked_pages = memory.pool.total - memory.available
    report.leaked_lines = memory.lines.count - len(memory.lines.free) - len(memory.lines.kept)


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def run(
    requests: Annotated[int, typer.Option(min=1, help="Requests to run together.")] = 10_000,
    distinct: Annotated[int, typer.Option(min=1, help="Different ones among them.")] = 1_000,
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = CHECKPOINT,
    slots: Annotated[int, typer.Option(min=1, help="Requests that run at once.")] = 8,
    pages: Annotated[int, typer.Option(min=16, help="Pages of the KV cache, few on purpose.")] = 24,
    seed: Annotated[int, typer.Option(help="Of all that is random.")] = 0,
    check: Annotated[bool, typer.Option(help="Prove memory's ownership after each round.")] = False,
) -> None:
    """Soak the engine and print what was found as JSON; exit code 1 if anything was wrong."""
    loaded = load_model(model, "cpu", "float32", deterministic=True)
    config = EngineConfig(
        max_slots=slots, num_threads=1, check_invariants=check, deterministic=True
    )
    wanted = draw_requests(loaded, distinct, seed)
    expected = run_alone(loaded, wanted, config)
    page_length = Engine(loaded, config).memory.page_length
    budget = pages * loaded.cache_sizes(page_length).page_bytes
    engine = Engine(loaded, replace(config, kv_cache_bytes=budget, prefill_token_budget=64))
    report = soak(engine, wanted, expected, requests, seed)
    typer.echo(json.dumps(asdict(report), indent=1))
    if report.wrong or report.failed or report.leaked_pages or report.leaked_lines:
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command("soak", run, "Example: `python -m perf.soak --requests 10000`")
