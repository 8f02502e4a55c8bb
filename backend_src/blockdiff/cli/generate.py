"""``blockdiff generate``: run requests on a checkpoint without a server.

Knows flags, files and output; the engine does the work.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from blockdiff.checkpoint import load_model
from blockdiff.cli.request_lines import Job, build_request, check_fields, parse_line
from blockdiff.cli.run_jobs import Outcome, as_json, run_jobs
from blockdiff.core import Mode
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import ConfigError, RequestError
from blockdiff.models.base import BlockDiffusionModel
from blockdiff.text import Tokenizer

DEFAULT_CONCURRENCY = 8


class OutputFormat(str, Enum):
    text = "text"
    json = "json"


def generate(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.", show_default=False)],
    prompt: Annotated[str | None, typer.Option(help="Raw text to continue.")] = None,
    messages: Annotated[str | None, typer.Option(help="Chat messages as JSON.")] = None,
    input_ids: Annotated[str | None, typer.Option(help="Token ids, e.g. 1,2,3.")] = None,
    requests: Annotated[
        Path | None, typer.Option(help="JSONL file, one request a line; flags are defaults.")
    ] = None,
    tools: Annotated[str | None, typer.Option(help="Tools for --messages, as JSON.")] = None,
    enable_thinking: Annotated[
        bool | None,
        typer.Option("--enable-thinking/--no-thinking", help="For chat templates that know it."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Output limit, 128 if not given.")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="No ending before so many.")] = None,
    block_length: Annotated[int | None, typer.Option(help="Default: the model's.")] = None,
    denoise_steps: Annotated[
        int | None, typer.Option(help="Fixed number of steps per block.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Accept tokens more probable than this.")
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="Only low_confidence so far.")] = None,
    editing_threshold: Annotated[float | None, typer.Option(help="Token editing models.")] = None,
    max_post_steps: Annotated[int | None, typer.Option(help="Token editing models.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 (default) is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(help="0 is off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="1 is off.")] = None,
    seed: Annotated[int | None, typer.Option(help="Output depends on request and seed.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be repeated.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after EOS.")] = False,
    mode: Annotated[Mode | None, typer.Option(help="Default: diffusion.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    concurrency: Annotated[int, typer.Option(min=1, help="Slots.")] = DEFAULT_CONCURRENCY,
    output: Annotated[OutputFormat, typer.Option("--format")] = OutputFormat.text,
) -> None:
    """Generate text without a server, for one prompt or for a file of requests."""
    given = {k: v for k, v in locals().items() if k not in _NOT_FIELDS and v not in (None, False)}
    fields = _parse_flags(given)
    lines = _read_lines(requests, fields)
    tokenizer = load_tokenizer(model)
    loaded = load_with_progress(model, device, dtype)
    jobs = _build_jobs(lines, loaded, tokenizer)
    engine = build_engine(loaded, tokenizer, jobs, concurrency)
    for job in jobs:
        with _naming(job.place):
            engine.validate(job.request)
    printer = _print_json if output is OutputFormat.json else _print_text
    outcomes = _run(engine, jobs, lambda outcome: printer(outcome, loaded, tokenizer))
    if any(outcome.final.error for outcome in outcomes):
        raise typer.Exit(1)


_NOT_FIELDS = frozenset({"model", "requests", "device", "dtype", "concurrency", "output"})
