"""Sparse mixture of experts: a softmax router with a gated shared expert, and its parts.

p = softmax(router x); keep the top k, divide by their sum -> w
y = sum_e w_e down_e^T (silu(gate_e x) * up_e x)  +  sigmoid(shared_gate x) shared(x)

The shared expert follows the E routed ones as N experts of the same width (slices of its inner
axis, zero-filled), which every row uses.

route_groups: s = sigmoid(router x); choose by s + bias: keep the groups whose two best sum highest,
then the top k inside them; w = scale * s / (sum of the chosen s + 1e-20), not divided for k = 1

route_scaled: as the router above; w_e is then multiplied by the expert's own scale.
``activation`` is silu or gelu_tanh (gelu by its tanh approximation) wherever silu is written.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from blockdiff_kernels.int8_rows import Int8Weight
from blockdiff_kernels.moe import cpu, reference
from blockdiff_kernels.pointwise import FAST, Pointwise

# few rows through few small experts: computing them all costs less than sorting rows by expert
DENSE_EXPERTS = 32
DENSE_FLOPS_OF_A_ROW = 1 << 17
DENSE_FLOPS = 3 << 19


def route(logits: Tensor, top_k: int, is_normalised: bool = True) -> tuple[Tensor, Tensor]:
    """Weights [R, k] float32 and expert ids [R, k] int64 from router logits [R, E].

    The weights sum to 1 or, if not ``is_normalised``, are the chosen experts' share of all.
    """
    return reference.route(logits, top_k, is_normalised)


def route_groups(
    logits: Tensor,
    bias: Tensor,
    top_k: int,
    groups: int,
    kept_groups: int,
    scale: float,
    pointwise: Pointwise = FAST,
) -> tuple[Tensor, Tensor]:
    """Weights [R, k] float32 and expert ids [R, k] int64 from logits [R, E] and ``bias`` [E]."""
    return reference.route_groups(logits, bias, top_k, groups, kept_groups, scale, pointwise)


def route_scaled(logits: Tensor, expert_scale: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Weights [R, k] float32 and expert ids [R, k] int64 from logits [R, E] and scales [E]."""
    return reference.route_scaled(logits, expert_scale, top_k)


def gated(
    gate: Tensor, up: Tensor, activation: str = "silu", pointwise: Pointwise = FAST
) -> Tensor:
    """activation(gate) * up, both of one shape."""
    return reference.gated(gate, up, activation, pointwise)


def prefers_all_experts(rows: int, down: Tensor) -> bool:
    """Whether ``all_experts`` is faster than ``experts`` for so many rows; down [E, I, H]."""
    total, inner, hidden = down.shape
    # of one row in one expert
    flops = 6 * inner * hidden
    is_small = total <= DENSE_EXPERTS and flops <= DENSE_FLOPS_OF_A_ROW
    return is_small and rows * flops <= DENSE_FLOPS


def experts(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    gate_up: Tensor,
    down: Tensor,
    activation: str = "silu",
) -> Tensor:
    """Weighted sum of each row's experts; returns y [R, H] in ``x.dtype``.

    x [R, H]; weights [R, k] float32; ids [R, k] int64, distinct in a row but for E, which stands
    for an expert that is elsewhere and adds nothing; gate_up [E, 2I, H] with the gate rows first;
    down [E, I, H] (that is: transposed, so that all experts form one matrix).
    """
    total = down.shape[0]
    if prefers_all_experts(x.shape[0], down):
        dense = weights.new_zeros(x.shape[0], total + 1).scatter(1, ids, weights)
        return reference.dense_experts(x, dense[:, :total], gate_up, down, activation)
    return reference.grouped_experts(x, weights, ids, gate_up, down, activation)


def packed_experts(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    gate_up: Sequence[Tensor],
    down: Sequence[Tensor],
    activation: str = "silu",
) -> Tensor:
    """``experts`` on a CPU, each expert's weights packed by themselves.

    gate_up E of [2I, H] and down E of [H, I], from ``blockdiff_kernels.packed``. A row's experts
    are added up in the order of its ``ids``.
    """
    return cpu.packed_experts(x, weights, ids, gate_up, down, activation)


def int8_experts(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    gate_up: Sequence[Int8Weight],
    down: Sequence[Int8Weight],
    activation: str = "silu",
) -> Tensor:
    """``packed_experts`` whose products are ``int8_rows.int8_linear``.

    gate_up of [2I, H] and down of [H, I], all experts of one width.
    """
    return cpu.int8_experts(x, weights, ids, gate_up, down, activation)


def experts_one_by_one(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    experts: int,
    apply: Callable[[int, Tensor], Tensor],
) -> Tensor:
    """``experts`` with any kind of weights: ``apply`` gives one expert's outputs for its rows.

    It is called with an expert's number and its rows [r, H], only for experts that have rows.
    """
    return reference.experts_one_by_one(x, weights, ids, experts, apply)


def experts_by_rank(
    x: Tensor,
    weights: Tensor,
    ids: Tensor,
    experts: int,
    apply: Callable[[int, Tensor], Tensor],
) -> Tensor:
    """``experts_one_by_one``, a row's experts added up in the order of its ``ids``.

    No sum goes through memory that several rows write to, so that its order is the same anywhere.
    """
    return reference.experts_by_rank(x, weights, ids, experts, apply)


def all_experts(
    x: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, activation: str = "silu"
) -> Tensor:
    """Every row through every expert, weights [R, E] zero where not chosen; as ``experts``."""
    return reference.dense_experts(x, weights, gate_up, down, activation)


def with_shared(
    weights: Tensor,
    ids: Tensor,
    gate: Tensor,
    num_experts: int,
    total: int,
    pointwise: Pointwise = FAST,
) -> tuple[Tensor, Tensor]:
    """Add the shared expert, experts ``num_experts`` to ``total`` of the stack, to every row.

    weights [R, k] float32 and ids [R, k] int64 of the routed experts; gate [R, 1], before its
    sigmoid. Returns both [R, k + total - num_experts].
    """
    return reference.with_shared(weights, ids, gate, num_experts, total, pointwise)


def weigh_with_shared(routing: Tensor, gate: Tensor, top_k: int, total: int) -> Tensor:
    """``route`` and ``with_shared`` as weights [R, total] float32 of every expert.

    routing [R, E], gate [R, 1]; zero for experts that are not chosen.
    """
    return reference.weigh_with_shared(routing, gate, top_k, total)
