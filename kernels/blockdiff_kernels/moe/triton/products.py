"""The experts' products for rows grouped by expert, and the weighted sum that follows them.

Weights are read once a tile of rows, in the number format they are stored in. Knows nothing of
routing rules.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import capability, ceil_div, launch
from blockdiff_kernels.moe import tiles as tile_table
from blockdiff_kernels.moe.plan import ExpertGroups, Routing
from blockdiff_kernels.moe.stacks import ExpertWeights, WeightStack
from blockdiff_kernels.moe.triton.weight_tiles import (
    CHANNEL,
    DENSE,
    GROUPED,
    INT4,
    int4_tiles,
    row_tile,
    weight_tile,
)

SUM_COLUMNS = 1024
# devices from here on convert 8-bit floats
HAS_FP8 = (8, 9)


@triton.jit
def gate_up_kernel(
    x, weight, scale, rows, tile_list, acted, bound, D, K, groups, se, sm, sk,
    KIND: tl.constexpr, GROUP: tl.constexpr, GELU: tl.constexpr, EVEN: tl.constexpr,
    BT: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """acted [entries, D] = a(gate x) * up x of weight [E, 2I, K] for x [R, K], by tiles."""
    i_m, i_l = tl.program_id(0), tl.program_id(1)
    stop = tl.load(tile_list + 2 * bound + i_l)
    if stop == 0:
        return
    start = tl.load(tile_list + bound + i_l)
    expert = tl.load(tile_list + i_l).to(tl.int64)
    o_t = start + tl.arange(0, BT)
    o_m = i_m * BM + tl.arange(0, BM)
    m_m = o_m < D
    WIDTH: tl.constexpr = BK // 2 if KIND == INT4 else BK
    o_k = tl.arange(0, WIDTH)
    b_row = tl.load(rows + tl.minimum(o_t, stop - 1)).to(tl.int64)
    p_x = x + b_row[None, :] * K + o_k[:, None]
    p_gate = weight + expert * se + o_m[:, None] * sm + o_k[None, :] * sk
    p_up = p_gate + D * sm
    p_sg = scale
    p_su = scale
    if KIND != DENSE:
        p_sg = scale + (expert * 2 * D + o_m) * groups
        p_su = p_sg + D * groups
    b_gate = tl.zeros([BM, BT], dtype=tl.float32)
    b_up = tl.zeros([BM, BT], dtype=tl.float32)
    DOT: tl.constexpr = x.dtype.element_ty
    for i_k in range(0, K, BK):
        b_x = row_tile(p_x, i_k, K, EVEN, WIDTH)
        if KIND == INT4:
            b_rest = row_tile(p_x, i_k + WIDTH, K, EVEN, WIDTH)
            b_low, b_high = int4_tiles(p_gate, p_sg, i_k, groups, m_m, GROUP, DOT, BM, WIDTH)
            b_gate = tl.dot(b_low, b_x, b_gate, input_precision="ieee")
            b_gate = tl.dot(b_high, b_rest, b_gate, input_precision="ieee")
            b_low, b_high = int4_tiles(p_up, p_su, i_k, groups, m_m, GROUP, DOT, BM, WIDTH)
            b_up = tl.dot(b_low, b_x, b_up, input_precision="ieee")
            b_up = tl.dot(b_high, b_rest, b_up, input_precision="ieee")
        else:
            b_w = weight_tile(p_gate, p_sg, i_k, K, groups, sk, m_m, KIND, GROUP, EVEN, DOT, BM, BK)
            b_gate = tl.dot(b_w, b_x, b_gate, input_precision="ieee")
            b_w = weight_tile(p_up, p_su, i_k, K, groups, sk, m_m, KIND, GROUP, EVEN, DOT, BM, BK)
            b_up = tl.dot(b_w, b_x, b_up, input_precision="ieee")
    if KIND == CHANNEL:
        b_gate *= tl.load(p_sg, mask=m_m, other=0.0)[:, None]
        b_up *= tl.load(p_su, mask=m_m, other=0.0)[:, None]
    b_z = b_gate
    if GELU:
        # x / 2 (1 + tanh z) = x sigmoid(2 z)
        b_z = 1.5957691216057308 * (b_gate + 0.044715 * b_gate * b_gate * b_gate)
    b_y = (b_gate * tl.sigmoid(b_z) * b_up).to(acted.dtype.element_ty)
    p_y = acted + o_t.to(tl.int64)[None, :] * D + o_m[:, None]
    tl.store(p_y, b_y, mask=m_m[:, None] & (o_t < stop)[None, :])


@triton.jit
def down_kernel(
    acted, weight, scale, tile_list, outputs, bound, H, K, groups, se, sm, sk,
    KIND: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
    BT: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """outputs [entries, H] = weight [E, H, K] acted [entries, K], a tile of entries."""
    i_m, i_l = tl.program_id(0), tl.program_id(1)
    stop = tl.load(tile_list + 2 * bound + i_l)
    if stop == 0:
        return
    start = tl.load(tile_list + bound + i_l)
    expert = tl.load(tile_list + i_l).to(tl.int64)
    o_t = start + tl.arange(0, BT)
    o_m = i_m * BM + tl.arange(0, BM)
    m_m = o_m < H
    WIDTH: tl.constexpr = BK // 2 if KIND == INT4 else BK
    o_k = tl.arange(0, WIDTH)
    p_x = acted + tl.minimum(o_t, stop - 1).to(tl.int64)[None, :] * K + o_k[:, None]
    p_w = weight + expert * se + o_m[:, None] * sm + o_k[None, :] * sk
    p_s = scale
    if KIND != DENSE:
        p_s = scale + (expert * H + o_m) * groups
    b_y = tl.zeros([BM, BT], dtype=tl.float32)
    DOT: tl.constexpr = acted.dtype.element_ty
    for i_k in range(0, K, BK):
        b_x = row_tile(p_x, i_k, K, EVEN, WIDTH)
        if KIND == INT4:
            b_low, b_high = int4_tiles(p_w, p_s, i_k, groups, m_m, GROUP, DOT, BM, WIDTH)
            b_y = tl.dot(b_low, b_x, b_y, input_precision="ieee")
            b_rest = row_tile(p_x, i_k + WIDTH, K, EVEN, WIDTH)
            b_y = tl.dot(b_high, b_rest, b_y, input_precision="ieee")
        else:
            b_w = weight_tile(p_w, p_s, i_k, K, groups, sk, m_m, KIND, GROUP, EVEN, DOT, BM, BK)
            b_y = tl.dot(b_w, b_x, b_y, input_precision="ieee")
    if KIND == CHANNEL:
        b_y *= tl.load(p_s, mask=m_m, other=0.0)[:, None]
    p_y = outputs + o_t.to(tl.int64)[None, :] * H + o_m[:, None]
    m = m_m[:, None] & (o_t < stop)[None, :]
    tl.store(p_y, b_y.to(outputs.dtype.element_ty), mask=m)


@triton.jit
def sum_kernel(
    outputs, weights, inverse, residual, y, H, CHOSEN: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """y [R, H] = residual + sum over a row's entries of weight * output, always in this order."""
    i_r = tl.program_id(0).to(tl.int64)
    o_h = tl.program_id(1) * BH + tl.arange(0, BH)
    m_h = o_h < H
    b_y = tl.zeros([BH], dtype=tl.float32)
    if residual is not None:
        b_y += tl.load(residual + i_r * H + o_h, mask=m_h, other=0.0).to(tl.float32)
    for i_k in tl.static_range(CHOSEN):
        at = tl.load(inverse + i_r * CHOSEN + i_k).to(tl.int64)
        weight = tl.load(weights + i_r * CHOSEN + i_k)
        b_o = tl.load(outputs + tl.maximum(at, 0) * H + o_h, mask=m_h & (at >= 0), other=0.0)
        b_y += tl.where(at >= 0, weight, 0.0) * b_o.to(tl.float32)
    tl.store(y + i_r * H + o_h, b_y.to(y.dtype.element_ty), mask=m_h)


def apply_experts(routing: Routing, stack: ExpertWeights, residual: Tensor | None = None) -> Tensor:
    """See the package ``moe``."""
    x, groups = routing.rows, routing.groups
    entries = groups.rows.numel()
    acted = x.new_empty(entries, stack.down.in_features)
    _gate_up(x, stack, groups, acted)
    outputs = x.new_empty(entries, x.shape[1])
    _down(acted, stack.down, groups, outputs)
    y = torch.empty_like(x)
    chosen = groups.inverse.shape[1]
    columns = min(SUM_COLUMNS, triton.next_power_of_2(x.shape[1]))
    arguments = {
        "outputs": outputs,
        "weights": routing.weights,
        "inverse": groups.inverse,
        "residual": residual,
        "y": y,
        "H": x.shape[1],
        "CHOSEN": chosen,
        "BH": columns,
    }
    launch(sum_kernel, (x.shape[0], ceil_div(x.shape[1], columns)), arguments, num_warps=4)
    return y


def _gate_up(x: Tensor, stack: ExpertWeights, groups: ExpertGroups, acted: Tensor) -> None:
    own = stack.gate_up
    assert own.in_features == x.shape[1], (own.values.shape, x.shape)
    assert stack.activation in ("silu", "gelu_tanh"), stack.activation
    tile = tile_table.gate_up_tile(groups.tile_rows, _bits(own), capability(x))
    depth = own.span if own.is_int4 else tile.depth
    inner = own.out_features // 2
    arguments = {
        "x": x,
        "rows": groups.rows,
        "tile_list": groups.tiles,
        "acted": acted,
        "bound": groups.tiles.shape[1],
        "D": inner,
        "K": own.in_features,
        "GELU": stack.activation == "gelu_tanh",
        "EVEN": inner % tile.outputs == 0 and own.in_features % depth == 0,
        "BT": tile.rows,
        "BM": tile.outputs,
        "BK": depth,
        **_weight_arguments(own),
    }
    grid = (ceil_div(inner, tile.outputs), groups.tiles.shape[1])
    launch(gate_up_kernel, grid, arguments, tile.num_warps, tile.num_stages)


def _down(acted: Tensor, own: WeightStack, groups: ExpertGroups, outputs: Tensor) -> None:
    assert own.out_features == outputs.shape[1], (own.values.shape, outputs.shape)
    tile = tile_table.down_tile(groups.tile_rows, _bits(own), capability(acted))
    depth = own.span if own.is_int4 else tile.depth
    arguments = {
        "acted": acted,
        "tile_list": groups.tiles,
        "outputs": outputs,
        "bound": groups.tiles.shape[1],
        "H": own.out_features,
        "K": own.in_features,
        "EVEN": own.out_features % tile.outputs == 0 and own.in_features % depth == 0,
        "BT": tile.rows,
        "BM": tile.outputs,
        "BK": depth,
        **_weight_arguments(own),
    }
    grid = (ceil_div(own.out_features, tile.outputs), groups.tiles.shape[1])
    launch(down_kernel, grid, arguments, tile.num_warps, tile.num_stages)


def _bits(own: WeightStack) -> int:
    return 4 if own.is_int4 else 8 * own.values.element_size()


def _weight_arguments(own: WeightStack) -> dict[str, object]:
    values, scale = own.values, own.scale
    if values.dtype == torch.float8_e4m3fn and capability(values) < HAS_FP8:
        values = values.view(torch.uint8)
    kind, group = DENSE, 0
    if scale is not None:
        kind = INT4 if own.is_int4 else CHANNEL if scale.shape[2] == 1 else GROUPED
        group = 0 if kind is CHANNEL else own.group
    return {
        "weight": values,
        "scale": scale,
        "groups": 1 if scale is None else scale.shape[2],
        "se": values.stride(0),
        "sm": values.stride(1),
        "sk": values.stride(2),
        "KIND": kind.value,
        "GROUP": group,
    }
