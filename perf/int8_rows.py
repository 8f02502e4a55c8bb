"""`python -m perf.int8_rows`: int8 weights with int8 activations, without, and bfloat16 weights.

Projections and sparse experts by themselves, as the layers of a loaded model compute them on a CPU,
in turns in one process. With one thread, times are processor time. Knows nothing of models.
"""

import statistics
import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer
from torch import Tensor

from blockdiff.errors import ConfigError
from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.int8 import INT8_ROWS, WEIGHT_ONLY
from blockdiff.models.layers.packed import PackedLinear, PackedStack
from blockdiff_kernels.int8_rows import is_fast
from blockdiff_kernels.moe import route
from blockdiff_kernels.quantized_linear.quantize import quantize_int
from perf.command import run_command
from perf.tables import markdown

EXAMPLES = """Examples:

    python -m perf.int8_rows                       # 32 and 256 rows; a minute

    python -m perf.int8_rows --rows 1,8,32 --repeats 5
"""
# outputs, inputs
PROJECTIONS = ((6176, 1024), (2048, 2048), (1024, 1024), (512, 1024), (256, 256), (128, 128))
# experts, chosen, inner, hidden; the last is the demo's
EXPERTS = ((64, 8, 256, 1024), (32, 8, 512, 2048), (8, 2, 64, 128))
MOST_ROWS = 1 << 14
SIDES = ("bf16", "int8", "w8a8")
HEAD = ("rows", "what", *SIDES, "int8 / w8a8", "bf16 / w8a8", "error of int8", "of w8a8")
Work = Callable[[Tensor], Tensor]


def run(
    rows: Annotated[str, typer.Option(help="Rows of activations, with commas.")] = "32,256",
    repeats: Annotated[int, typer.Option(min=1, max=10_000, help="Turns; medians count.")] = 9,
    threads: Annotated[int, typer.Option(min=1, max=1024, help="CPU threads.")] = 1,
) -> None:
    """Time int8 activations against weight-only int8 and bfloat16."""
    counts = _counts(rows)
    if not is_fast():
        raise ConfigError("this processor has no AVX-512 VNNI; there is nothing to measure")
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    lines = []
    for sizes in PROJECTIONS:
        sides = _projections(*sizes)
        lines += [
            _line(n, f"{sizes[0]} x {sizes[1]}", sides, sizes[1], repeats, clock) for n in counts
        ]
    for count, chosen, inner, hidden in EXPERTS:
        name = f"{count} experts of {inner} x {hidden}, {chosen} chosen"
        listed = _experts(count, inner, hidden)
        for n in counts:
            sides = [_routed(own, n, chosen) for own in listed]
            lines.append(_line(n, name, sides, hidden, repeats, clock))
    print(f"Milliseconds of one call; errors of the norm against bf16.\n\n{markdown(HEAD, lines)}")


def _counts(rows: str) -> list[int]:
    try:
        counts = [int(word) for word in rows.split(",")]
    except ValueError:
        raise ConfigError(f"rows: {rows!r} must be numbers with commas between them") from None
    if not all(1 <= count <= MOST_ROWS for count in counts):
        raise ConfigError(f"rows: {rows!r} must be from 1 to {MOST_ROWS}")
    return counts


def _weight(outputs: int, inputs: int) -> Tensor:
    return torch.randn(outputs, inputs) * inputs**-0.5


def _projections(outputs: int, inputs: int) -> list[Work]:
    weight = _weight(outputs, inputs)
    stored = quantize_int(weight, 8)
    products = [products.linear(*stored) for products in (WEIGHT_ONLY, INT8_ROWS)]
    return [PackedLinear(weight.bfloat16()), *products]


def _experts(count: int, inner: int, hidden: int) -> list[Experts]:
    stack = PackedStack(inner, hidden, torch.empty(0, dtype=torch.bfloat16))
    stored = []
    for _ in range(count):
        gate_up, down = _weight(2 * inner, hidden), _weight(hidden, inner)
        places = stack.place()
        places[0].copy_(gate_up)
        places[1].copy_(down.t())
        stored.append((quantize_int(gate_up, 8), quantize_int(down, 8)))
    found: list[Experts] = [stack.finish("silu")]
    for products in (WEIGHT_ONLY, INT8_ROWS):
        first, second = ([products.linear(*pair[n]) for pair in stored] for n in (0, 1))
        found.append(products.experts(first, second, "silu"))
    return found


def _routed(own: Experts, rows: int, chosen: int) -> Work:
    logits = torch.randn(rows, own.count, generator=torch.Generator().manual_seed(rows))
    weights, ids = route(logits, chosen)
    return lambda x: own(x, weights, ids)


@torch.inference_mode()
def _line(
    rows: int,
    name: str,
    sides: list[Work],
    width: int,
    repeats: int,
    clock: Callable[[], float],
) -> list[str]:
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).bfloat16()
    results = [side(x).double() for side in sides]
    samples: list[list[float]] = [[] for _ in sides]
    for _ in range(repeats):
        for own, side in zip(samples, sides, strict=True):
            began = clock()
            side(x)
            own.append(clock() - began)
    seconds = [statistics.median(own) for own in samples]
    errors = [float((own - results[0]).norm() / results[0].norm()) for own in results[1:]]
    ratios = [seconds[1] / seconds[2], seconds[0] / seconds[2]]
    milliseconds = [f"{1e3 * own:.3f}" for own in seconds]
    return [
        str(rows),
        name,
        *milliseconds,
        *(f"{r:.2f}" for r in ratios),
        *(f"{e:.1e}" for e in errors),
    ]


if __name__ == "__main__":
    run_command("int8_rows", run, EXAMPLES)
