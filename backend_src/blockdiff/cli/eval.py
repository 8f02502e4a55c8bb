"""``blockdiff eval``: accuracy and tokens per forward of a checkpoint, per task and setting.

Knows flags, the prompts file and where results go.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from blockdiff.checkpoint.sizes import model_tensors, tensor_bytes
from blockdiff.cli.dtype_option import ComputeDtype
from blockdiff.cli.engine_options import Kernels, TruncateLastBlock
from blockdiff.cli.loading import (
    load_tokenizer,
    load_with_progress,
    naming,
    progress_bar,
    read_lines,
)
from blockdiff.cli.parallel_options import RankTimeout, TensorParallel
from blockdiff.engine import Engine, EngineConfig
from blockdiff.engine.validate import check_request
from blockdiff.errors import ConfigError
from blockdiff.evaluation.compare import (
    COMPARE_NOTE,
    Comparison,
    check_comparable,
    compare_models,
    print_comparison,
    reference_dtype,
)
from blockdiff.evaluation.questions import read_questions
from blockdiff.evaluation.report import NOTE, check_folders, print_table, write_result
from blockdiff.evaluation.run import (
    Question,
    Score,
    Setting,
    make_request,
    make_settings,
    measure,
)
from blockdiff.kernel_choice import use_kernels
from blockdiff.models.base import BlockDiffusionModel
from blockdiff.parallel.settings import RANK_TIMEOUT, ParallelSettings
from blockdiff.text import Tokenizer

PROMPTS_FILE = "eval_prompts.jsonl"
THRESHOLDS = "0.5,0.6,0.7,0.8,0.9,0.95,0.99"
STEPS = "1,2,4,8,16"
Number = TypeVar("Number", int, float)


class TableFormat(str, Enum):
    table = "table"
    json = "json"


def evaluate(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.", show_default=False)],
    prompts: Annotated[
        Path | None, typer.Option(help=f"JSONL file; default: {PROMPTS_FILE} of the checkpoint.")
    ] = None,
    thresholds: Annotated[str, typer.Option(help="Comma-separated; empty: none.")] = THRESHOLDS,
    steps: Annotated[str, typer.Option(help="Fixed steps per block; empty: none.")] = STEPS,
    autoregressive: Annotated[bool, typer.Option(help="Also one token per forward.")] = True,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Only so many prompts, spread over the tasks.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output limit per prompt.")] = 128,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests per round.")] = 16,
    truncate_last_block: TruncateLastBlock = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: ComputeDtype = "float32",
    kernels: Kernels = None,
    tensor_parallel: TensorParallel = 1,
    tensor_parallel_timeout: RankTimeout = RANK_TIMEOUT,
    compare: Annotated[
        Path | None,
        typer.Option(help="Checkpoint this one was made from: compare both, in one setting."),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Draw quality against forwards.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the JSON result here too.")] = None,
    output: Annotated[TableFormat, typer.Option("--format")] = TableFormat.table,
) -> None:
    """Measure exact match, tokens per forward and tokens/s per task, for many decoding settings."""
    numbers = _numbers("thresholds", thresholds, float), _numbers("steps", steps, int)
    path = prompts or model / PROMPTS_FILE
    use_kernels(kernels, device)
    check_folders({"png": png, "out": out})
    wanted = EngineConfig(max_slots=concurrency, truncate_last_block=truncate_last_block)
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise ConfigError(f"model: {model} has no tokenizer.json, which eval needs")
    questions = read_questions(read_lines("prompts", path), tokenizer, limit)
    parallel = ParallelSettings(tensor_parallel, tensor_parallel_timeout)
    loaded = load_with_progress(model, device, dtype, parallel)
    if compare is not None:
        if tensor_parallel > 1:
            raise ConfigError("tensor_parallel: a comparison runs in one process; leave it out")
        setting = _single_setting(loaded, numbers, thresholds != THRESHOLDS, steps != STEPS, png)
        reference = load_with_progress(compare, device, reference_dtype(dtype))
        check_comparable(loaded, reference)
        engines = [
            _build_engine(own, questions, [setting], max_tokens, wanted)
            for own in (loaded, reference)
        ]
        with progress_bar("comparing") as advance:
            found = compare_models(engines, tokenizer, questions, setting, max_tokens, advance)
        facts = {"model": str(model), "reference": str(compare), "setting": setting.label}
        _show_comparison(facts, found, engines, out, output)
        return
    settings = _settings(loaded, numbers[0], numbers[1], autoregressive)
    engine = _build_engine(loaded, questions, settings, max_tokens, wanted)
    scores = _measure(engine, tokenizer, questions, settings, max_tokens)
    result = {
        "model": str(model),
        "prompts": len(questions),
        "concurrency": engine.config.max_slots,
        "truncate_last_block": truncate_last_block,
        "note": NOTE,
        "scores": [score.as_json() for score in scores],
    }
    write_result(result, scores, out, png)
    if output is TableFormat.json:
        sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
    else:
        print_table(scores, _console())


def _console() -> Console:
    """Into a file or pipe, lines are as long as a table is."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


def _single_setting(
    model: BlockDiffusionModel,
    numbers: tuple[list[float], list[int]],
    has_thresholds: bool,
    has_steps: bool,
    png: Path | None,
) -> Setting:
    """The one setting of a comparison: the one that is given, or the checkpoint's threshold."""
    if png is not None:
        raise ConfigError("png: a comparison has no picture; leave it out")
    thresholds = numbers[0] if has_thresholds else []
    settings = make_settings(thresholds, numbers[1] if has_steps else [], False)
    if len(settings) > 1:
        raise ConfigError("thresholds, steps: a comparison has one setting; give one number")
    return settings[0] if settings else make_settings([model.info.default_threshold], [], False)[0]


def _show_comparison(
    facts: dict[str, Any],
    found: Sequence[Comparison],
    engines: Sequence[Engine],
    out: Path | None,
    output: TableFormat,
) -> None:
    sizes = [sum(map(tensor_bytes, model_tensors(engine.model))) for engine in engines]
    result = {
        **facts,
        "prompts": found[-1].model.prompts,
        "note": COMPARE_NOTE,
        "weight_bytes": {"model": sizes[0], "reference": sizes[1]},
        "tasks": [row.as_json() for row in found],
    }
    write_result(result, (), out, None)
    if output is TableFormat.json:
        sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
    else:
        print_comparison(found, sizes, _console())


def _numbers(flag: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ConfigError(f"{flag}: {text!r} must be numbers separated by commas") from error


def _settings(
    model: BlockDiffusionModel,
    thresholds: Sequence[float],
    steps: Sequence[int],
    autoregressive: bool,
) -> list[Setting]:
    with_single = autoregressive and model.info.supports_autoregressive
    settings = make_settings(thresholds, steps, with_single)
    if not settings:
        raise ConfigError("thresholds, steps: nothing to measure; give at least one setting")
    return settings


def _build_engine(
    model: BlockDiffusionModel,
    questions: Sequence[Question],
    settings: Sequence[Setting],
    max_tokens: int,
    wanted: EngineConfig,
) -> Engine:
    """An engine for all questions, each of which is checked under each setting."""
    limit = model.info.max_context
    longest = max(questions, key=lambda question: len(question.input_ids))
    config = replace(
        wanted,
        max_slots=min(wanted.max_slots, len(questions)),
        max_context=min(len(longest.input_ids) + max_tokens, limit),
        max_output_tokens=limit,
    )
    for setting in settings:
        request = make_request(longest, 0, setting, max_tokens)
        with naming(f"{setting.label}: "):
            check_request(request, model.info, config, limit, True)
    engine = Engine(model, config)
    # The first rounds of a process are slow; no setting should pay for them.
    engine.warm_up()
    return engine


def _measure(
    engine: Engine,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    settings: Sequence[Setting],
    max_tokens: int,
) -> list[Score]:
    scores = []
    count = len(settings) * (1 + len({question.task for question in questions}))
    with progress_bar("measuring") as advance:
        for score in measure(engine, tokenizer, questions, settings, max_tokens):
            scores.append(score)
            advance(len(scores), count)
    return scores
