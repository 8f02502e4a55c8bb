"""The kernels of one forward and what each of them costs, for any family's shape.

Uses the ops' own costs, so that a plan and the benchmark of an op speak of the same numbers.
Knows nothing of devices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from blockdiff.planning.shape import AttentionShape, DeltaShape, ModelShape
from blockdiff.planning.speed.weights import Kept, WeightFormat
from blockdiff_kernels.attention.cost import cost as attention_cost
from blockdiff_kernels.conv.cost import cost as conv_cost
from blockdiff_kernels.cost import Cost
from blockdiff_kernels.denoise.cost import cost as denoise_cost
from blockdiff_kernels.embedding.cost import cost as embedding_cost
from blockdiff_kernels.gated_delta.cost import StateShape
from blockdiff_kernels.gated_delta.cost import cost as delta_cost
from blockdiff_kernels.head.cost import cost as head_cost
from blockdiff_kernels.moe.cost import experts_cost, routing_cost
from blockdiff_kernels.projection.cost import cost as projection_cost
from blockdiff_kernels.rope.cost import cost as rope_cost
from blockdiff_kernels.self_conditioning.cost import cost as conditioning_cost


class StepKernel(NamedTuple):
    """One kernel of a forward."""

    name: str
    times: int  # equal launches, one after the other
    cost: Cost  # of one of them


@dataclass(frozen=True)
class Rows:
    """What goes through one forward."""

    segments: int
    rows: int  # of each segment
    context: int  # committed tokens of each
    with_logits: int  # rows of all segments that need logits
    distinct_experts: float  # that they use in a layer
    state_bytes: float = 4.0  # of a number of a recurrent state

    @property
    def total(self) -> int:
        return self.segments * self.rows


def step_kernels(shape: ModelShape, rows: Rows, weights: WeightFormat) -> list[StepKernel]:
    """Kernels in the order of a forward; norms, gates and residuals ride in their neighbours."""
    hidden, total = shape.hidden_size, rows.total
    found = [StepKernel("embedding", 1, embedding_cost(total, hidden))]
    # one token at a time needs no signal of the step before
    if shape.signal_elements and shape.dense is not None and rows.rows > 1:
        found += _conditioning(shape, rows, weights)
    if shape.delta is not None:
        found += _delta(shape.delta, hidden, rows, weights)
    for kind in shape.attention:
        found += _attention(kind, hidden, rows, weights)
    if shape.dense is not None:
        parts = _feed_forward(shape.dense.width, hidden, total, weights.projections)
        found += [StepKernel(f"feed-forward {n}", shape.dense.layers, c) for n, c in parts]
    if shape.experts is not None:
        found += _experts(shape, rows, weights)
    head = head_cost(rows.with_logits, hidden, shape.vocab_size)
    found.append(StepKernel("head, greatest logit", 1, head))
    found.append(StepKernel("denoise", 1, denoise_cost(total)))
    return [kernel for kernel in found if kernel.times]


def _delta(own: DeltaShape, hidden: int, rows: Rows, weights: WeightFormat) -> Iterator[StepKernel]:
    total, inner = rows.total, own.value_heads * own.value_dim
    inputs = own.channels + inner + 2 * own.value_heads
    per_weight = weights.projections
    state = StateShape(own.key_heads, own.value_heads, own.key_dim, own.value_dim)
    found = {
        "gated delta, in": projection_cost(total, hidden, inputs, 0, per_weight(hidden)),
        "gated delta, convolution": conv_cost(total, own.channels, own.kernel),
        "gated delta, block": delta_cost(rows.segments, rows.rows, state, False, rows.state_bytes),
        "gated delta, out": projection_cost(
            total, inner, hidden, 2 * total * (inner + hidden), per_weight(inner)
        ),
    }
    return (StepKernel(name, own.layers, cost) for name, cost in found.items())


def _attention(
    kind: AttentionShape, hidden: int, rows: Rows, weights: WeightFormat
) -> Iterator[StepKernel]:
    total, heads = rows.total, (kind.heads, kind.kv_heads)
    keys = rows.context if kind.kept is None else min(kind.kept, rows.context)
    gate = 2 * total * kind.query_width if kind.has_gate else 0
    name = "attention" if kind.kept is None else "sliding attention"
    per_weight = weights.projections
    found = {
        "in": projection_cost(total, hidden, kind.stored_width, 0, per_weight(hidden)),
        "norm and rope": rope_cost(total, 0, heads, kind.head_dim),
        "over the cache": attention_cost(rows.rows, keys, rows.segments, heads, kind.head_dim),
        "out": projection_cost(
            total, kind.query_width, hidden, gate + 2 * total * hidden, per_weight(kind.query_width)
        ),
    }
    return (StepKernel(f"{name}, {part}", kind.layers, cost) for part, cost in found.items())


def _experts(shape: ModelShape, rows: Rows, weights: WeightFormat) -> Iterator[StepKernel]:
    own, hidden, total = shape.experts, shape.hidden_size, rows.total
    assert own is not None
    size = own.width * hidden * (2 * weights.experts(hidden) + weights.experts(own.width))
    yield StepKernel("router", own.layers, routing_cost(total, hidden, own.count, own.chosen))
    chosen = experts_cost(total, rows.distinct_experts, own.chosen, hidden, own.width, size)
    yield StepKernel("experts", own.layers, chosen)
    if own.shared_width:
        first, second = _feed_forward(own.shared_width, hidden, total, weights.projections)
        yield StepKernel("shared expert", own.layers, first[1].plus(second[1]))


def _feed_forward(
    width: int, hidden: int, rows: int, per_weight: Kept
) -> tuple[tuple[str, Cost], tuple[str, Cost]]:
    """Gate and up side by side with their product, and down with the residual."""
    first = projection_cost(rows, hidden, 2 * width, -2 * rows * width, per_weight(hidden))
    second = projection_cost(rows, width, hidden, 0, per_weight(width))
    return ("in", first), ("out", second)


def _conditioning(shape: ModelShape, rows: Rows, weights: WeightFormat) -> Iterator[StepKernel]:
    """What a step's logits expect becomes a signal of the next one."""
    assert shape.dense is not None
    hidden = shape.hidden_size
    expected = conditioning_cost(rows.with_logits, hidden, shape.vocab_size)
    yield StepKernel("expected embedding", 1, expected)
    for name, cost in _feed_forward(shape.dense.width, hidden, rows.total, weights.projections):
        yield StepKernel(f"self-conditioning {name}", 1, cost)
