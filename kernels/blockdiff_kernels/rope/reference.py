"""Plain torch definition of partial, half-split rotary embedding. Knows nothing of layers."""

import torch
from torch import Tensor

from blockdiff_kernels.norm.reference import plain_rms_norm, rms_norm, scaled_rms_norm
from blockdiff_kernels.rope.heads import HeadNorm, Heads, Scaling, Store

NORMS = {
    Scaling.ZERO_CENTRED: rms_norm,
    Scaling.SCALED: scaled_rms_norm,
    Scaling.PLAIN: plain_rms_norm,
}


def rope_angles(positions: Tensor, rotary_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    return _angles(positions, rope_frequencies(rotary_dim, theta, positions.device))


def proportional_angles(
    positions: Tensor, head_dim: int, pairs: int, theta: float
) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    frequencies = proportional_frequencies(head_dim, pairs, theta, positions.device)
    return _angles(positions, frequencies)


def rope_frequencies(rotary_dim: int, theta: float, device: torch.device) -> Tensor:
    """[rotary_dim / 2] float32 angle per position."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=device)
    return 1.0 / theta ** (exponents / rotary_dim)


def proportional_frequencies(
    head_dim: int, pairs: int, theta: float, device: torch.device
) -> Tensor:
    """[head_dim / 2] float32 angle per position, 0 after the first ``pairs``."""
    exponents = torch.arange(0, 2 * pairs, 2, dtype=torch.float32, device=device)
    turning = 1.0 / theta ** (exponents / head_dim)
    return torch.nn.functional.pad(turning, (0, head_dim // 2 - pairs))


def _angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    angles = positions.to(torch.float32).unsqueeze(-1) * frequencies
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """See the package docstring."""
    half = cos.shape[-1]
    first, second, rest = x.split_with_sizes((half, half, x.shape[-1] - 2 * half), dim=-1)
    cos, sin = cos.unsqueeze(-2), sin.unsqueeze(-2)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((turned[0].to(x.dtype), turned[1].to(x.dtype), rest), dim=-1)


def turn_and_write(
    projected: Tensor,
    norm: HeadNorm,
    angles: tuple[Tensor, Tensor],
    heads: Heads,
    store: Store | None,
) -> tuple[Tensor, Tensor]:
    """See the package docstring."""
    turning = heads.query + heads.kv
    normed = NORMS[norm.scaling](projected[:, :turning], norm.weight, norm.eps)
    turned = apply_rope(normed, *angles)
    value = projected[:, heads.value : heads.value + heads.kv]
    if heads.norms_value:
        value = plain_rms_norm(value, None, norm.eps)
    if store is not None:
        write_rows(turned[:, heads.query :], value, store)
    return turned, value


def write_rows(key: Tensor, value: Tensor, store: Store) -> None:
    """See the package docstring."""
    chosen = (store.written >= 0).nonzero().squeeze(1)
    places = store.written.index_select(0, chosen)
    for rows, kept in ((key, store.keys), (value, store.values)):
        kept.flatten(1, 2).index_copy_(1, places, rows.index_select(0, chosen).transpose(0, 1))
