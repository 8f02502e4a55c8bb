"""``blockdiff generate``: run requests on a checkpoint without a server.

Knows flags, files and output; the engine does the work.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from blockdiff.cli.dtype_option import ComputeDtype
from blockdiff.cli.ending_options import (
    IgnoreEos,
    IncludeStop,
    Stop,
    StopTokenIds,
    ThinkingBudget,
)
from blockdiff.cli.engine_options import (
    Deterministic,
    Kernels,
    KvCacheSize,
    PrefixCache,
    TruncateLastBlock,
    optional_bytes,
)
from blockdiff.cli.expert_statistics import check_file, write_statistics
from blockdiff.cli.generate_lines import build_jobs, ids_flag, json_flag, read_requests
from blockdiff.cli.loading import (
    load_tokenizer,
    load_with_progress,
    naming,
    progress_bar,
)
from blockdiff.cli.parallel_options import RankTimeout, TensorParallel
from blockdiff.cli.recorded import RecordedTensors
from blockdiff.cli.replay import read_draws
from blockdiff.cli.sampling_options import (
    FrequencyPenalty,
    LogitBias,
    LogProbs,
    MinP,
    PresencePenalty,
    RepetitionPenalty,
    StepMap,
    StopRamp,
    ThinkEndRamp,
    TopLogProbs,
)
from blockdiff.cli.show_outcome import print_json, print_text
from blockdiff.cli.watch import Watcher, watched
from blockdiff.core import Mode
from blockdiff.decoding.draws import DrawSource
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import ConfigError
from blockdiff.jobs import Job, Outcome, require_success, run_jobs
from blockdiff.kernel_choice import use_kernels
from blockdiff.models.base import BlockDiffusionModel
from blockdiff.parallel.settings import RANK_TIMEOUT, ParallelSettings
from blockdiff.text import Tokenizer

DEFAULT_CONCURRENCY = 8


class OutputFormat(str, Enum):
    text = "text"
    json = "json"


def generate(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.", show_default=False)],
    prompt: Annotated[str | None, typer.Option(help="Raw text to continue; no template.")] = None,
    messages: Annotated[str | None, typer.Option(help="Chat messages as JSON.")] = None,
    input_ids: Annotated[str | None, typer.Option(help="Token ids, e.g. 1,2,3.")] = None,
    requests: Annotated[
        Path | None, typer.Option(help="JSONL file, one request a line; flags are defaults.")
    ] = None,
    tools: Annotated[str | None, typer.Option(help="Tools for --messages, as JSON.")] = None,
    tool_choice: Annotated[
        str | None, typer.Option(help="none, auto, required, or JSON that names one function.")
    ] = None,
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
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="Default: the model's. low_confidence; SDAR also: sequential, entropy_bounded."
        ),
    ] = None,
    editing_threshold: Annotated[float | None, typer.Option(help="Token editing models.")] = None,
    max_post_steps: Annotated[int | None, typer.Option(help="Token editing models.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 (default) is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(help="0 is off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="1 is off.")] = None,
    seed: Annotated[int | None, typer.Option(help="Output depends on request and seed.")] = None,
    min_p: MinP = None,
    repetition_penalty: RepetitionPenalty = None,
    presence_penalty: PresencePenalty = None,
    frequency_penalty: FrequencyPenalty = None,
    logit_bias: LogitBias = None,
    stop_ramp: StopRamp = None,
    think_end_ramp: ThinkEndRamp = None,
    return_log_probs: LogProbs = False,
    top_logprobs: TopLogProbs = None,
    return_step_map: StepMap = False,
    thinking_budget: ThinkingBudget = None,
    stop: Stop = None,
    stop_token_ids: StopTokenIds = None,
    include_stop_str_in_output: IncludeStop = False,
    bad_word: Annotated[
        list[str] | None, typer.Option(help="Never part of the answer; may be repeated.")
    ] = None,
    guide_type: Annotated[
        str | None, typer.Option(help="json, json_schema, regex or ebnf_grammar.")
    ] = None,
    guide: Annotated[str | None, typer.Option(help="What the answer must be.")] = None,
    pinned: Annotated[
        str | None, typer.Option(help='Given answer tokens by place, as JSON: {"5": 17}.')
    ] = None,
    suffix: Annotated[str | None, typer.Option(help="Given text behind --gap open places.")] = None,
    suffix_ids: Annotated[str | None, typer.Option(help="The same as token ids.")] = None,
    gap: Annotated[int | None, typer.Option(min=1, help="Places before the suffix.")] = None,
    ignore_eos: IgnoreEos = False,
    mode: Annotated[Mode | None, typer.Option(help="Default: diffusion.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: ComputeDtype = "float32",
    concurrency: Annotated[int, typer.Option(min=1, help="Slots.")] = DEFAULT_CONCURRENCY,
    kv_cache_size: KvCacheSize = None,
    prefix_cache: PrefixCache = True,
    truncate_last_block: TruncateLastBlock = False,
    deterministic: Deterministic = False,
    kernels: Kernels = None,
    tensor_parallel: TensorParallel = 1,
    tensor_parallel_timeout: RankTimeout = RANK_TIMEOUT,
    expert_statistics: Annotated[
        Path | None, typer.Option(help="Count chosen experts into this .json or .png file.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show every preview of every block on stderr.")
    ] = False,
    output: Annotated[OutputFormat, typer.Option("--format")] = OutputFormat.text,
) -> None:
    """Generate text without a server, for one prompt or for a file of requests."""
    flags: dict[str, Any] = {
        "prompt": prompt,
        "messages": json_flag("messages", messages),
        "input_ids": ids_flag("input_ids", input_ids),
        "tools": json_flag("tools", tools),
        "tool_choice": tool_choice,
        "enable_thinking": enable_thinking,
        "max_tokens": max_tokens,
        "min_tokens": min_tokens,
        "block_length": block_length,
        "denoise_steps": denoise_steps,
        "threshold": threshold,
        "algorithm": algorithm,
        "editing_threshold": editing_threshold,
        "max_post_steps": max_post_steps,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": json_flag("logit_bias", logit_bias),
        "stop_ramp": json_flag("stop_ramp", stop_ramp),
        "think_end_ramp": json_flag("think_end_ramp", think_end_ramp),
        "return_log_probs": return_log_probs or None,
        "top_logprobs": top_logprobs,
        "return_step_map": return_step_map or None,
        "thinking_budget": thinking_budget,
        "stop": stop or None,
        "stop_token_ids": ids_flag("stop_token_ids", stop_token_ids),
        "include_stop_str_in_output": include_stop_str_in_output or None,
        "bad_words": bad_word or None,
        "guide_type": guide_type,
        "guide": guide,
        "pinned": json_flag("pinned", pinned),
        "suffix": suffix,
        "suffix_ids": ids_flag("suffix_ids", suffix_ids),
        "gap": gap,
        "ignore_eos": ignore_eos or None,
        "mode": None if mode is None else str(mode),
    }
    use_kernels(kernels, device, deterministic)
    if expert_statistics is not None:
        check_file(expert_statistics)
    lines = read_requests(requests, {k: v for k, v in flags.items() if v is not None})
    tokenizer = load_tokenizer(model)
    parallel = ParallelSettings(
        tensor_parallel, tensor_parallel_timeout, deterministic=deterministic
    )
    loaded = load_with_progress(model, device, dtype, parallel)
    if expert_statistics is not None and not loaded.info.num_experts:
        raise ConfigError("expert-statistics: this model has no experts; leave it out")
    jobs = build_jobs(lines, loaded, tokenizer)
    if watch:
        jobs = watched(jobs)
    draws = read_draws(jobs, loaded.info, RecordedTensors(model))
    wanted = EngineConfig(
        max_slots=concurrency,
        kv_cache_bytes=optional_bytes("--kv-cache-size", kv_cache_size),
        prefix_cache=prefix_cache,
        truncate_last_block=truncate_last_block,
        deterministic=deterministic,
        expert_statistics_interval=0 if expert_statistics is None else 1,
        # capturing all shapes takes longer than a few answers
        cuda_graphs=False,
    )
    engine = _build_engine(loaded, tokenizer, jobs, wanted, draws)
    show = print_json if output is OutputFormat.json else print_text
    ended = {} if draws is None else draws.ended

    def finish(outcome: Outcome) -> None:
        end = ended.get(outcome.job.request.uid)
        if end is not None:
            outcome.fail_from(end.block, outcome.job.place + end.text)
        show(outcome, engine, tokenizer)

    outcomes = _run(engine, jobs, finish, Watcher(tokenizer))
    if expert_statistics is not None:
        _write_statistics(engine, expert_statistics)
    require_success(outcomes)


def _build_engine(
    model: BlockDiffusionModel,
    tokenizer: Tokenizer | None,
    jobs: Sequence[Job],
    wanted: EngineConfig,
    draws: DrawSource | None,
) -> Engine:
    """An engine whose caches are as large as the jobs need; every job is checked against it."""
    limit = model.info.max_context
    needed = max(len(job.request.input_ids) + job.request.max_tokens for job in jobs)
    config = replace(
        wanted,
        max_slots=min(wanted.max_slots, len(jobs)),
        max_context=limit if needed < 2 else min(needed, limit),
        max_output_tokens=limit,
    )
    engine = Engine(model, config, tokenizer, draws)
    for job in jobs:
        with naming(job.place):
            engine.validate(job.request)
    return engine


def _run(
    engine: Engine, jobs: Sequence[Job], show: Callable[[Outcome], None], watcher: Watcher
) -> list[Outcome]:
    """Run all; each outcome is shown, in the order of the jobs, as soon as that is possible."""
    done: dict[int, Outcome] = {}
    shown = 0

    def on_done(outcome: Outcome) -> None:
        nonlocal shown
        done[outcome.job.request.uid] = outcome
        advance(len(done), len(jobs))
        while shown in done:
            show(done[shown])
            shown += 1

    with progress_bar("generating", is_wanted=len(jobs) > 1) as advance:
        return run_jobs(engine, jobs, on_done, watcher.show)


def _write_statistics(engine: Engine, path: Path) -> None:
    counts = engine.publish_statistics()
    assert counts is not None, "there were rounds, and the model has experts"
    write_statistics(counts, path)
