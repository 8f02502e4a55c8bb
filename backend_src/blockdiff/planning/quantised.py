"""How many weights of each part are quantised, and how many scales they need.

Knows headers of stored checkpoints, and shapes of models that are quantised while they are read.
Follows ``checkpoint.formats`` and ``checkpoint.scheme`` without their imports, which need torch.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from blockdiff.config.quantization import GROUP_SIZES, Quantization
from blockdiff.planning.shape import ModelShape
from blockdiff.weights.groups import group_of
from blockdiff.weights.headers import TensorHeader
from blockdiff.weights.packed import values_per_word

# Routers, norms, embeddings and what is small stay in high precision.
QUANTISED_PARTS = frozenset(
    ("experts", "shared expert", "attention", "gated delta", "dense feed-forward")
)
_VALUES = ("I8", "F8_E4M3")
# inputs of a projection -> how many of them share a scale
Unit = Callable[[int], int]


class Quantised(NamedTuple):
    """Of one part."""

    weights: int
    scales: int


NONE = Quantised(0, 0)


def stored_unit(own: Quantization) -> Unit:
    """How a stored checkpoint's inputs share scales once it is loaded."""

    def unit(inputs: int) -> int:
        if own.block is not None:
            return math.gcd(own.block[1], inputs)
        return own.group or inputs

    return unit


def loading_unit(kind: str) -> Unit:
    """How inputs share scales when projections are quantised while they are read."""
    sizes = sorted(GROUP_SIZES, reverse=True) if kind == "int4" else []
    return lambda inputs: next((size for size in sizes if inputs % size == 0), inputs)


def count_stored(tensors: Iterable[TensorHeader], own: Quantization) -> dict[str, Quantised]:
    """By part, what the headers of a checkpoint stored as ``own`` hold."""
    found: dict[str, Quantised] = {}
    unit = stored_unit(own)
    for tensor in tensors:
        part, size = group_of(tensor.name), _matrix(tensor, values_per_word(own))
        if size is not None and part in QUANTISED_PARTS:
            rows, inputs = size
            before = found.get(part, NONE)
            scales = rows * math.ceil(inputs / unit(inputs))
            found[part] = Quantised(before.weights + rows * inputs, before.scales + scales)
    return found


def _matrix(tensor: TensorHeader, per_word: int) -> tuple[int, int] | None:
    """Rows and inputs of the projection whose values a tensor holds."""
    if len(tensor.shape) != 2:
        return None
    first, second = tensor.shape
    if tensor.name.endswith(".weight_packed"):
        return first, second * per_word
    if tensor.name.endswith(".qweight"):
        return second, first * per_word
    is_plain = tensor.name.endswith(".weight") and tensor.dtype in _VALUES
    return (first, second) if is_plain else None


def count_projections(shape: ModelShape, unit: Unit) -> dict[str, Quantised]:
    """By part, what is quantised where every projection is, as ``unit`` says."""
    found = {}
    for part, by_inputs in _projections(shape).items():
        weights = sum(count for _, count in by_inputs)
        scales = sum(count // unit(inputs) for inputs, count in by_inputs if inputs)
        found[part] = Quantised(min(weights, shape.parts.get(part, 0)), scales)
    return found


def _projections(shape: ModelShape) -> dict[str, list[tuple[int, int]]]:
    """By part: pairs of inputs, and weights of the projections that have so many."""
    hidden = shape.hidden_size
    found: dict[str, list[tuple[int, int]]] = {"attention": []}
    for kind in shape.attention:
        found["attention"].append((hidden, kind.layers * kind.projected_width * hidden))
        found["attention"].append((kind.query_width, kind.layers * kind.query_width * hidden))
    if shape.delta is not None:
        inner = shape.delta.value_heads * shape.delta.value_dim
        rows = shape.delta.layers * (shape.delta.channels + inner)
        found["gated delta"] = [
            (hidden, rows * hidden),
            (inner, shape.delta.layers * inner * hidden),
        ]
    if shape.dense is not None:
        found["dense feed-forward"] = _feed_forward(hidden, shape.dense.width, shape.dense.layers)
    if shape.experts is not None:
        own = shape.experts
        found["experts"] = _feed_forward(hidden, own.width, own.layers * own.count)
        found["shared expert"] = _feed_forward(hidden, own.shared_width, own.layers)
    return found


def _feed_forward(hidden: int, width: int, times: int) -> list[tuple[int, int]]:
    return [(hidden, times * 2 * width * hidden), (width, times * width * hidden)]
