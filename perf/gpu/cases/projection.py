"""Projections into and out of both kinds of mixers, in bfloat16 and quantised."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.projection import GatedNormed, Normed, Plain, Source, projection
from blockdiff_kernels.projection.cost import cost
from blockdiff_kernels.quantized_linear import pack_int4, quantized_projection
from blockdiff_kernels.quantized_linear.cost import cost as quantized_cost
from blockdiff_kernels.quantized_linear.quantize import quantize_fp8, quantize_int
from perf.gpu.case import Maker, OpCase, Work
from perf.gpu.sizes import Sizes

EPS = 1e-6
GROUP = 128
# bits of a weight
FORMATS = {"bf16": 16, "fp8": 8, "int4": 4}
MakeSource = Callable[[Maker, int, int], Source]


def normed(maker: Maker, rows: int, width: int) -> Source:
    """Hidden rows on their way into a mixer."""
    x, weight = maker.normal(rows, width), maker.normal(width, scale=0.1)
    return Normed(x, weight, EPS, NormKind.ZERO_CENTRED)


def plain(maker: Maker, rows: int, width: int) -> Source:
    """Rows as they are."""
    return Plain(maker.normal(rows, width))


def heads_of(dim: int) -> MakeSource:
    """What a gated delta layer gives, with its gates."""

    def make(maker: Maker, rows: int, width: int) -> Source:
        x = maker.normal(rows, width // dim, dim, dtype=maker.state_dtype)
        gate = maker.normal(rows, width // dim, dim)
        weight = maker.normal(dim, dtype=maker.state_dtype)
        return GatedNormed(x, gate, weight, EPS)

    return make


def cases(sizes: Sizes, rows: Sequence[int]) -> list[OpCase]:
    """Each with every kind of weights where it is quantised."""
    delta, heads = sizes.delta_inner, sizes.heads * sizes.head_dim
    attention = 2 * (sizes.heads + sizes.kv_heads) * sizes.head_dim
    shapes = [
        ("delta-in", normed, sizes.hidden, sizes.channels + delta + 2 * sizes.value_heads, False),
        ("delta-out", heads_of(sizes.delta_dim), delta, sizes.hidden, True),
        ("attention-in", normed, sizes.hidden, attention, False),
        ("attention-out", plain, heads, sizes.hidden, True),
    ]
    return [
        _case(shape, count, weights) for shape in shapes for weights in FORMATS for count in rows
    ]


Shape = tuple[str, MakeSource, int, int, bool]


def _case(shape: Shape, rows: int, weights: str) -> OpCase:
    name, source, inputs, outputs, has_residual = shape
    # the gate of the source, and the residual
    extra = 2 * rows * (inputs + outputs) if has_residual else 0

    def make(maker: Maker) -> Work:
        own = source(maker, rows, inputs)
        weight = maker.normal(outputs, inputs, scale=inputs**-0.5)
        residual = maker.normal(rows, outputs) if has_residual else None
        if weights == "bf16":
            return Work(lambda: [projection(own, weight, residual)])
        values, scale = _quantised(weight, weights)
        return Work(lambda: [quantized_projection(own, values, scale, residual)])

    sizes = (rows, inputs, outputs)
    if weights == "bf16":
        total = cost(*sizes, extra)
    else:
        total = quantized_cost(*sizes, FORMATS[weights], _group(inputs, weights), extra)
    return OpCase("projection", name, rows, make, total, weights=weights)


def _group(inputs: int, kind: str) -> int:
    """Inputs of an output that share a scale."""
    return min(GROUP, inputs) if kind == "int4" else inputs


def _quantised(weight: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    own = weight.to(torch.bfloat16).float()
    if kind == "fp8":
        return quantize_fp8(own)
    values, scale = quantize_int(own, 4, _group(own.shape[1], kind))
    return pack_int4(values), scale
