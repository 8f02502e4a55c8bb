"""Head norms, rotary turn and the write to pages in one Triton kernel, and the write alone.

A program takes a few rows of one head. Knows nothing of layers.
"""

import triton
import triton.language as tl
from torch import Tensor

from blockdiff_kernels.launch import ceil_div, launch, power_of_two
from blockdiff_kernels.rope import tiles
from blockdiff_kernels.rope.heads import HeadNorm, Heads, Scaling, Store


@triton.jit
def turn_and_write_kernel(
    projected, weight, cos, sin, turned, value, keys, values, written,
    R, width, heads, turning, value_head, places, eps,
    D: tl.constexpr, HALF: tl.constexpr, IS_CENTRED: tl.constexpr,
    BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """projected [R, width]; turned [R, turning, D]; value [R, Hkv, D] or None: as projected.

    keys, values [Hkv, places, D] get rows whose written [R] is not negative. Heads of the grid:
    query heads, key heads (``turning`` in all), value heads.
    """
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    i_h, o_d = tl.program_id(1), tl.arange(0, BD)
    m_r, m_d = o_r < R, o_d < D
    m = m_r[:, None] & m_d[None, :]
    i_source = tl.where(i_h < turning, i_h, i_h - turning + value_head)
    p_x = projected + o_r[:, None] * width + i_source * D
    b_x = tl.load(p_x + o_d[None, :], mask=m, other=0.0).to(tl.float32)
    b_factor = tl.rsqrt(tl.sum(b_x * b_x, 1) / D + eps)[:, None]
    b_place = tl.full((BR,), -1, tl.int64)
    if keys is not None:
        b_place = tl.load(written + o_r, mask=m_r, other=-1)
    m_w = m & (b_place >= 0)[:, None]
    o_w = b_place[:, None] * D + o_d[None, :]
    if i_h < turning:
        # each number is turned with its partner, which is read once more from the same lines
        o_q = tl.where(o_d < HALF, o_d + HALF, tl.where(o_d < 2 * HALF, o_d - HALF, o_d))
        b_q = tl.load(p_x + o_q[None, :], mask=m, other=0.0).to(tl.float32)
        b_w = tl.load(weight + i_h * D + o_d, mask=m_d, other=0.0).to(tl.float32)
        b_u = tl.load(weight + i_h * D + o_q, mask=m_d, other=0.0).to(tl.float32)
        if IS_CENTRED:
            b_w += 1
            b_u += 1
        o_a = o_r[:, None] * HALF + tl.where(o_d < HALF, o_d, o_d - HALF)[None, :]
        m_a = m_r[:, None] & (o_d < 2 * HALF)[None, :]
        b_c = tl.load(cos + o_a, mask=m_a, other=1.0)
        b_s = tl.load(sin + o_a, mask=m_a, other=0.0)
        b_s = tl.where((o_d < HALF)[None, :], -b_s, b_s)
        b_y = b_factor * (b_x * b_w[None, :] * b_c + b_q * b_u[None, :] * b_s)
        b_y = b_y.to(turned.dtype.element_ty)
        tl.store(turned + (o_r[:, None] * turning + i_h) * D + o_d[None, :], b_y, mask=m)
        if keys is not None:
            i_k = (i_h - heads).to(tl.int64)
            tl.store(keys + i_k * places * D + o_w, b_y, mask=m_w & (i_h >= heads))
    else:
        i_v = (i_h - turning).to(tl.int64)
        if value is not None:
            b_x *= b_factor
            o_v = (o_r[:, None] * (turning - heads) + i_v) * D + o_d[None, :]
            tl.store(value + o_v, b_x.to(value.dtype.element_ty), mask=m)
        if keys is not None:
            b_v = b_x.to(values.dtype.element_ty)
            tl.store(values + i_v * places * D + o_w, b_v, mask=m_w)


@triton.jit
def write_rows_kernel(
    key, value, keys, values, written, R, key_width, value_width, places,
    D: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Rows of key, value [R, width] to keys, values [Hkv, places, D] where written [R] says."""
    o_r = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    i_h, o_d = tl.program_id(1).to(tl.int64), tl.arange(0, BD)
    b_place = tl.load(written + o_r, mask=o_r < R, other=-1)
    m = (b_place >= 0)[:, None] & (o_d < D)[None, :]
    o_w = (i_h * places + b_place)[:, None] * D + o_d[None, :]
    o_h = i_h * D + o_d[None, :]
    b_k = tl.load(key + o_r[:, None] * key_width + o_h, mask=m, other=0.0)
    tl.store(keys + o_w, b_k, mask=m)
    b_v = tl.load(value + o_r[:, None] * value_width + o_h, mask=m, other=0.0)
    tl.store(values + o_w, b_v, mask=m)


def turn_and_write(
    projected: Tensor,
    norm: HeadNorm,
    angles: tuple[Tensor, Tensor],
    heads: Heads,
    store: Store | None,
) -> tuple[Tensor, Tensor]:
    """See the package."""
    rows, _, dim = projected.shape
    assert projected.stride()[1:] == (dim, 1), "heads lie side by side"
    turning, cos = heads.query + heads.kv, angles[0]
    turned = projected.new_empty(rows, turning, dim)
    value = projected[:, heads.value : heads.value + heads.kv]
    normed = projected.new_empty(rows, heads.kv, dim) if heads.norms_value else None
    has_values = normed is not None or store is not None
    tile = tiles.rows_of(dim)
    arguments = {
        "projected": projected,
        "weight": norm.weight,
        "cos": cos,
        "sin": angles[1],
        "turned": turned,
        "value": normed,
        **_store_arguments(store),
        "R": rows,
        "width": projected.stride(0),
        "heads": heads.query,
        "turning": turning,
        "value_head": heads.value,
        "eps": norm.eps,
        "D": dim,
        "HALF": cos.shape[-1],
        "IS_CENTRED": norm.scaling is Scaling.ZERO_CENTRED,
        "BR": tile.rows,
        "BD": power_of_two(dim),
    }
    grid = (ceil_div(rows, tile.rows), turning + (heads.kv if has_values else 0))
    launch(turn_and_write_kernel, grid, arguments, tile.num_warps)
    return turned, value if normed is None else normed


def _store_arguments(store: Store | None) -> dict[str, Tensor | int | None]:
    if store is None:
        return {"keys": None, "values": None, "written": None, "places": 0}
    assert store.keys.is_contiguous() and store.values.is_contiguous()
    return {
        "keys": store.keys,
        "values": store.values,
        "written": store.written,
        "places": store.keys.shape[1] * store.keys.shape[2],
    }


def write_rows(key: Tensor, value: Tensor, store: Store) -> None:
    """See the package."""
    rows, heads, dim = key.shape
    assert key.stride()[1:] == value.stride()[1:] == (dim, 1), "heads lie side by side"
    tile = tiles.rows_of(dim)
    arguments = {
        "key": key,
        "value": value,
        **_store_arguments(store),
        "R": rows,
        "key_width": key.stride(0),
        "value_width": value.stride(0),
        "D": dim,
        "BR": tile.rows,
        "BD": power_of_two(dim),
    }
    launch(write_rows_kernel, (ceil_div(rows, tile.rows), heads), arguments, tile.num_warps)
