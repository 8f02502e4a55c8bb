"""``blockdiff plan --speed``: the ceiling on tokens per second that bytes and operations set.

Knows flags and tables; the sums are made in ``blockdiff.planning.speed``.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Column, Table

from blockdiff.errors import ConfigError
from blockdiff.planning import PlannedModel
from blockdiff.planning.shape import ModelShape
from blockdiff.planning.speed.devices import GIVEN, find_rates
from blockdiff.planning.speed.forecast import Forecast, Question, forecast
from blockdiff.planning.speed.routing import Routing
from blockdiff.planning.speed.weights import weight_format

NOTE = (
    "A ceiling computed from bytes and floating-point operations, every kernel at the full rates "
    "and nothing between them: not measured."
)
LEGEND = (
    "experts: read in each layer. TPF n: tokens/s where n tokens settle per forward and request.",
    "commits: what those of all blocks add to a forward; few rows choose other experts than the",
    "previews, many the same. AR: the same weights, token by token.",
    "Whether weights and requests fit in memory: blockdiff plan without --speed.",
)
_SHOWN = (1, 2, 4, 8)
_USUAL_CONTEXT = 2048
_MOST_REQUESTS = 4096
_STATES = {"fp32": 4.0, "bf16": 2.0}
_WIDE = 148


def make_question(
    model: PlannedModel, dtype: str, block_length: int, given: dict[str, Any]
) -> Question:
    """What is asked, from checked flags; ``given`` are those of ``OWN_FLAGS``."""
    if dtype == "fp32":
        raise ConfigError("--dtype fp32: devices have no rate for it here; take bf16 or smaller")
    states = _check_states(model.shape, given["state_dtype"])
    _check_routing(model.shape, given["coreset"], given["diversity"])
    context = given["context"]
    if context is None:
        context = min(_USUAL_CONTEXT, model.shape.max_context - block_length)
    _check_lengths(model.shape, block_length, context)
    return Question(
        shape=model.shape,
        weights=weight_format(dtype, model.stored),
        rates=find_rates(given["gpu"], given["bandwidth"], given["flops"]),
        block_length=block_length,
        context=context,
        routing=Routing(given["diversity"], given["coreset"]),
        state_bytes=states,
    )


def _check_states(shape: ModelShape, dtype: str) -> float:
    """Bytes of one number of a recurrent state."""
    states = _STATES.get(dtype)
    if states is None:
        raise ConfigError(f"--state-dtype {dtype}: allowed are fp32 and bf16")
    if shape.delta is None and dtype != "fp32":
        raise ConfigError("--state-dtype: this model has no recurrent states; leave it out")
    return states


def _check_routing(shape: ModelShape, coreset: int | None, diversity: float) -> None:
    experts = shape.experts
    if experts is None:
        if coreset is not None or diversity != 1:
            raise ConfigError("--coreset, --diversity: this model has no experts; leave them out")
    elif coreset is not None and not experts.chosen <= coreset <= experts.count:
        raise ConfigError(
            f"--coreset {coreset}: must be from {experts.chosen} to {experts.count}, as a row "
            f"chooses {experts.chosen} experts of {experts.count}"
        )


def _check_lengths(shape: ModelShape, block_length: int, context: int) -> None:
    most = shape.max_context
    if block_length > most:
        raise ConfigError(f"--block-length {block_length}: must be from 1 to {most}, the model's")
    if shape.has_fixed_block and block_length != shape.block_length:
        raise ConfigError(
            f"--block-length {block_length}: must be {shape.block_length}, the model's canvas"
        )
    if context + block_length > most:
        raise ConfigError(
            f"--context {context}: must be from 0 to {most - block_length}, which leaves room for "
            f"a block in the model's {most}"
        )


def run(asked: Question, dtype: str, batches: str, is_json: bool, png: Path | None) -> None:
    """Print the forecast for every batch, and draw it where a file is named."""
    found = [forecast(asked, batch) for batch in _numbers(batches)]
    if png is not None:
        from blockdiff.cli.speed_picture import draw

        draw(png, asked, dtype, found)
    if is_json:
        typer.echo(json.dumps(as_json(asked, dtype, found), indent=1))
    else:
        show(asked, dtype, found)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    # int() takes other digits too, and refuses very long numbers in its own words
    found = [int(part) if re.fullmatch("[0-9]{1,9}", part) else 0 for part in parts]
    if not all(0 < number <= _MOST_REQUESTS for number in found):
        most = _MOST_REQUESTS
        raise ConfigError(f"--batches {text[:60]!r}: must be numbers from 1 to {most}, e.g. 1,4,16")
    return sorted(set(found))


def as_json(asked: Question, dtype: str, found: Sequence[Forecast]) -> dict[str, Any]:
    """Everything, the kernels of each forward included; seconds, bytes and operations."""
    rates = asked.rates
    return {
        "note": NOTE,
        "model": asked.shape.family,
        "dtype": dtype,
        "device": rates.name,
        "bytes_per_second": rates.bytes_per_second,
        "flops_per_second": rates.flops_per_second,
        "source": rates.source,
        "block_length": asked.block_length,
        "context": asked.context,
        "batches": [_batch_as_json(asked, one) for one in found],
    }


def _batch_as_json(asked: Question, one: Forecast) -> dict[str, Any]:
    return {
        "batch": one.batch,
        "rows": one.rows,
        "distinct_experts": one.distinct_experts,
        "forward_seconds": one.forward_seconds,
        "commit_seconds": one.commit_seconds,
        "tokens_per_second": {n: one.tokens_per_second(n) for n in asked.tokens_per_forward},
        "with_commits": {n: one.with_commits(n) for n in asked.tokens_per_forward},
        "autoregressive_seconds": one.autoregressive_seconds,
        "autoregressive_tokens_per_second": one.autoregressive_tokens_per_second,
        "break_even_tokens_per_forward": one.break_even,
        **one.cost._asdict(),
        "kernels": [
            {"name": k.name, "times": k.times, **k.cost._asdict(), "seconds": asked.seconds([k])}
            for k in one.kernels
        ],
    }


def show(asked: Question, dtype: str, found: Sequence[Forecast]) -> None:
    """A table for people."""
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_WIDE)
    rates = asked.rates
    console.print(
        f"{asked.shape.family}, weights in {dtype}, {rates.place}: "
        f"{rates.bytes_per_second / 1e12:g} TB/s, {rates.flops_per_second / 1e12:g} TFLOP/s"
        f"{'' if rates.source == GIVEN else f' ({rates.source})'}",
        soft_wrap=True,
    )
    console.print(f"blocks of {asked.block_length}, context {asked.context:,}{_routing(asked)}")
    console.print(NOTE, soft_wrap=True)
    names = ["batch", "rows", "experts", "forward, ms", "forwards/s"]
    shown = [n for n in _SHOWN if n in asked.tokens_per_forward]
    names += [f"TPF {n}" for n in shown]
    names += ["commits, ms", "AR, ms", "AR tokens/s", "TPF to match"]
    table = Table(*(Column(name, justify="right") for name in names))
    for one in found:
        table.add_row(*_cells(one, shown))
    console.print(table)
    for line in LEGEND:
        console.print(line)


def _routing(asked: Question) -> str:
    if asked.shape.experts is None:
        return ""
    own = asked.routing
    said = ", experts drawn uniformly"
    if own.coreset is not None:
        said += f" from {own.coreset} of each block"
    return said + (f", {own.diversity:.0%} of the rows anew" if own.diversity < 1 else "")


def _cells(one: Forecast, shown: Sequence[int]) -> list[str]:
    experts = "-" if one.distinct_experts is None else f"{one.distinct_experts:.0f}"
    return [
        str(one.batch),
        str(one.rows),
        experts,
        _milliseconds(one.forward_seconds),
        f"{1 / one.forward_seconds:.1f}",
        *(f"{one.tokens_per_second(n):,.0f}" for n in shown),
        _milliseconds(one.commit_seconds),
        _milliseconds(one.autoregressive_seconds),
        f"{one.autoregressive_tokens_per_second:,.0f}",
        f"{one.break_even:.1f}",
    ]


def _milliseconds(seconds: float) -> str:
    """Two digits after the point, or two that say something."""
    return f"{seconds * 1e3:.2f}" if seconds >= 1e-4 else f"{seconds * 1e3:.2g}"
