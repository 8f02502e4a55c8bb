"""A source as arguments of a projection's kernel. Knows nothing of weights or tiles."""

import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.norm.triton import gated_rms_norm, rms_norm
from blockdiff_kernels.pointwise.triton import gated_pair
from blockdiff_kernels.projection import prologue, tiles
from blockdiff_kernels.projection.sources import GatedNormed, GatedPair, Normed, Source

GELU = "gelu_tanh"
_NONE: Mapping[str, Any] = {
    "gate": None,
    "norm": None,
    "gate_row": 0,
    "eps": 0.0,
    "offset": 0.0,
    "SOURCE": int(prologue.PLAIN.value),
    "GELU": False,
}

_FUSED_ROWS = {
    prologue.PLAIN.value: sys.maxsize,
    prologue.NORMED.value: tiles.FUSED_NORMED,
    prologue.GATED_NORMED.value: tiles.FUSED_HEADS,
    prologue.GATED_PAIR.value: tiles.FUSED_PAIRS,
}


class SourceArguments(NamedTuple):
    """What a kernel gets of a source, and what its launcher must know."""

    rows: int
    inputs: int
    columns: int  # of a head that is normed by itself; 0: none
    bits: int  # read for a column of a row
    dtype: torch.dtype  # of the rows
    is_normed: bool  # results are divided by the root of the mean square of whole rows
    fused_rows: int  # up to so many are computed where they are read
    arguments: dict[str, Any]


def source_arguments(source: Source) -> SourceArguments:
    """Of any source; what is not laid out as kernels read it is copied."""
    if isinstance(source, GatedNormed):
        return _gated_normed(source)
    if isinstance(source, GatedPair):
        x = _rows(source.gate_up)
        pair = {"SOURCE": int(prologue.GATED_PAIR.value), "GELU": source.activation == GELU}
        return _make(x, x.shape[1] // 2, 2 * _bits(x), pair)
    x = _rows(source.x)
    if not isinstance(source, Normed):
        return _make(x, x.shape[1], _bits(x), {})
    own: dict[str, Any] = {
        "norm": source.weight.contiguous(),
        "eps": source.eps,
        "offset": float(source.kind is NormKind.ZERO_CENTRED),
        "SOURCE": int(prologue.NORMED.value),
    }
    return _make(x, x.shape[1], _bits(x), own)


def computed(source: Source) -> Tensor:
    """The source's rows [R, in] by a kernel of their own, for projections of many rows."""
    if isinstance(source, GatedPair):
        return gated_pair(source.gate_up, source.activation == GELU)
    if isinstance(source, GatedNormed):
        return gated_rms_norm(source.x, source.gate, source.weight, source.eps).flatten(1)
    if isinstance(source, Normed):
        return rms_norm(source.x, source.weight, source.eps, source.kind)
    return source.x


def _gated_normed(source: GatedNormed) -> SourceArguments:
    x, gate = _heads(source.x), _heads(source.gate)
    own = {
        "gate": gate,
        "norm": source.weight.contiguous(),
        "gate_row": gate.stride(0),
        "eps": source.eps,
        "SOURCE": int(prologue.GATED_NORMED.value),
    }
    heads, width = x.shape[1:]
    made = _make(x, heads * width, _bits(x) + _bits(gate), own)
    return made._replace(columns=width, dtype=gate.dtype)


def _make(x: Tensor, inputs: int, bits: int, own: dict[str, Any]) -> SourceArguments:
    arguments = {**_NONE, "x": x, "x_row": x.stride(0), **own}
    kind = arguments["SOURCE"]
    is_normed, most = kind == prologue.NORMED.value, _FUSED_ROWS[kind]
    return SourceArguments(x.shape[0], inputs, 0, bits, x.dtype, is_normed, most, arguments)


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def _heads(x: Tensor) -> Tensor:
    """[R, heads, D] with the heads of a row side by side."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


def _bits(x: Tensor) -> int:
    return 8 * x.element_size()
