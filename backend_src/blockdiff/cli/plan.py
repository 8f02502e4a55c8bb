"""``blockdiff plan``: what memory a model needs, before any weight is read.

Knows flags and tables; the sums are made in ``blockdiff.planning``.
"""

import json
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from blockdiff.cli import speed_options as option
from blockdiff.cli.dtype_option import short_dtype
from blockdiff.cli.plan_advice import DEFAULT_SLOTS, notes, serve_command, verdict
from blockdiff.cli.plan_bar import memory_bar
from blockdiff.cli.sizes import counted
from blockdiff.errors import ConfigError
from blockdiff.planning import Plan, Setup, make_plan, read_model
from blockdiff.planning.needs import weight_parts
from blockdiff.planning.units import GIB, parse_size

_WIDE = 120


class Dtype(str, Enum):
    bf16 = "bf16"
    int8 = "int8"
    int4 = "int4"
    fp8 = "fp8"
    fp32 = "fp32"
    bfloat16 = "bfloat16"
    float32 = "float32"


class Device(str, Enum):
    cuda = "cuda"
    cpu = "cpu"


class Output(str, Enum):
    table = "table"
    json = "json"


def plan(
    model: Annotated[
        Path, typer.Option(help="Checkpoint folder or config.json.", show_default=False)
    ],
    command_line: typer.Context,
    device_memory: Annotated[
        str, typer.Option(help="Memory of one device, such as 80GiB.", show_default=False)
    ] = "",
    dtype: Annotated[
        Dtype | None, typer.Option(help="How weights are kept; default: as stored, else bf16.")
    ] = None,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Devices that share it.")] = 1,
    max_batch_size: Annotated[
        int, typer.Option(min=1, help="Requests that run at once (slots).")
    ] = DEFAULT_SLOTS,
    max_context: Annotated[
        int | None, typer.Option(min=1, help="Tokens per request; default: the model's limit.")
    ] = None,
    block_length: Annotated[int | None, typer.Option(min=1, help="Default: the model's.")] = None,
    headroom: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of the memory to leave free.")
    ] = 0.25,
    device: Annotated[Device, typer.Option(help="Whose runtime overhead to count.")] = Device.cuda,
    speed: option.Speed = False,
    gpu: option.Gpu = "h200",
    bandwidth: option.Bandwidth = None,
    flops: option.Flops = None,
    context: option.Context = None,
    batches: option.Batches = "1,4,16,64",
    coreset: option.Coreset = None,
    diversity: option.Diversity = 1.0,
    state_dtype: option.StateDtype = "fp32",
    png: option.Png = None,
    output: Annotated[Output, typer.Option("--format")] = Output.table,
) -> None:
    """Say what memory a model needs, how many requests fit, and what to change if it does not.

    With --speed: how many tokens a second bytes and operations allow, computed and not measured.
    """
    option.check_flags(_given(command_line), speed)
    if png is not None:
        option.check_png(png)
    found = read_model(model)
    if speed:
        # the ops' costs come with torch, which takes seconds to import
        from blockdiff.cli import plan_speed

        kept = choose_dtype(found.stored_kind, dtype)
        asked = plan_speed.make_question(
            found, kept, block_length or found.shape.block_length, command_line.params
        )
        plan_speed.run(asked, kept, batches, output is Output.json, png)
        return
    memory = parse_size("--device-memory", device_memory)
    setup = Setup(
        device_memory=memory,
        dtype=choose_dtype(found.stored_kind, dtype),
        tensor_parallel=tensor_parallel,
        slots=max_batch_size,
        context=max_context or found.shape.max_context,
        block_length=block_length or found.shape.block_length,
        headroom=headroom,
        device=device.value,
    )
    made = make_plan(found, setup)
    if output is Output.json:
        typer.echo(json.dumps({**made.as_json(), "notes": notes(made)}, indent=1))
    else:
        show(made, serve_command(made, model))


def _given(command_line: typer.Context) -> list[str]:
    """Names of the parameters that were typed, not defaulted."""
    sources = {name: command_line.get_parameter_source(name) for name in command_line.params}
    return [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]


def choose_dtype(stored: str | None, asked: Dtype | None) -> str:
    """The dtype of the plan; projections that are stored quantised stay what they are."""
    wanted = None if asked is None else short_dtype(asked.value)
    if stored is not None and wanted not in (None, stored):
        raise ConfigError(
            f"--dtype {wanted}: not possible, the weights are stored in {stored}; leave it out"
        )
    return stored or wanted or Dtype.bf16.value


def show(made: Plan, command: str | None) -> None:
    """Tables and sentences for people; ``command`` serves the model as planned."""
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=_WIDE)
    setup, model = made.setup, made.model
    devices = f"{setup.tensor_parallel} x " if setup.tensor_parallel > 1 else ""
    console.print(
        f"{model.shape.family}: {_count(model.parameters)} parameters, "
        f"{_count(model.active_parameters)} active per token; weights in {setup.dtype} "
        f"{_bytes(sum(weight_parts(model, setup.dtype).values()))}"
    )
    console.print(
        f"on {devices}{setup.device_memory / GIB:.1f} GiB: {counted(setup.slots, 'slot')}, "
        f"context {setup.context:,}, blocks of {setup.block_length}"
    )
    console.print(demand_table(made))
    for line in memory_bar(made):
        console.print(line)
    for sentence in verdict(made):
        console.print(sentence)
    for note in notes(made):
        console.print(f"note: {note}")
    if command is not None:
        # to be copied: a line of its own, whatever the width
        console.print(f"serve it with: {command}", markup=False, soft_wrap=True)


def demand_table(made: Plan) -> Table:
    """One row per kind of memory, on each device."""
    setup, demand = made.setup, made.demand
    binary, decimal = ("GiB", "GB") if demand.total >= GIB else ("MiB", "MB")
    table = Table(
        "on each device",
        Column(binary, justify="right"),
        Column(decimal, justify="right"),
        "how",
    )

    def add(name: str, size: int, how: str) -> None:
        scales = (GIB, 1e9) if binary == "GiB" else (GIB >> 10, 1e6)
        table.add_row(name, *(f"{size / scale:.2f}" for scale in scales), how)

    for name, size, how in kinds(made):
        add(name, size, how)
    table.add_section()
    add("needed", demand.total, "the larger of activations and sampling counts")
    free = 100 * setup.headroom
    add("usable", setup.usable, f"{100 - free:.0f} % of the device, {free:.0f} % headroom")
    return table


def kinds(made: Plan) -> list[tuple[str, int, str]]:
    """Kinds of memory that the model has: name, bytes, how they come about."""
    demand, shape = made.demand, made.model.shape
    token, state = made.kv_bytes_per_token, made.state_bytes_per_request
    per_token = f"{token / 1024:.1f} KiB per token"
    if any(kind.kept is not None for kind in shape.attention):
        per_token += ", and sliding windows"
    found = [
        ("weights", demand.weights, "all experts resident" if shape.experts else "all layers"),
        ("keys and values", demand.kv_cache, per_token),
    ]
    if state:
        name = "recurrent states" if shape.delta else "canvas signals"
        found.append((name, demand.recurrent_state, f"{state / 2**20:.1f} MiB per request"))
    if demand.kept_states:
        found.append(("kept states", demand.kept_states, "of prefixes, serve --snapshot-size"))
    return [
        *found,
        ("activations", demand.activations, "largest stage of a layer"),
        ("sampling", demand.sampling, "a tile of logits, after the activations"),
        ("runtime", demand.overhead, f"{made.setup.device} context and libraries"),
    ]


def _count(number: int) -> str:
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.2f} M"


def _bytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB" if number >= 1e9 else f"{number / 1e6:.2f} MB"
