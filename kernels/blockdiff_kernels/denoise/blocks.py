"""Blocks as they are before and after a preview, and how the latter travel. Data only."""

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

LOW_CONFIDENCE, SEQUENTIAL, ENTROPY_BOUNDED = range(3)
"""Values of ``Blocks.algorithm``."""

Line = TypeVar("Line")


class Blocks(NamedTuple):
    """G blocks of up to B places; a place beyond a block is neither open nor decided."""

    canvas: Tensor  # [G, B] int32
    log_probs: Tensor  # [G, B] float32 of these tokens
    is_open: Tensor  # [G, B] int32, 1: yes
    rows: Tensor  # [G, B] int32 row that decides the place; -1: none
    algorithm: Tensor  # [G] int32
    minimum: Tensor  # [G] int32 places that are accepted at least; 1 or more
    threshold: Tensor  # [G] float32
    is_editing: Tensor  # [G] int32, 1: yes
    editing_threshold: Tensor  # [G] float32
    post_steps: Tensor  # [G] int32 previews before this one that left no place open
    max_post_steps: Tensor  # [G] int32


class Preview(NamedTuple):
    """What a preview says of each of the L rows."""

    tokens: Tensor  # [L] int64
    log_probs: Tensor  # [L] float32
    entropy: Tensor | None = None  # [L] float32 in nats; needed where a block is decided by it


class Updated(NamedTuple):
    """Blocks after a preview."""

    canvas: Tensor  # [G, B] int32
    log_probs: Tensor  # [G, B] float32
    is_open: Tensor  # [G, B] int32
    is_settled: Tensor  # [G] int32


def pack(updated: Updated) -> Tensor:
    """[G, 3 B + 1] int32."""
    bits = updated.log_probs.view(torch.int32)
    parts = (updated.canvas, bits, updated.is_open, updated.is_settled[:, None])
    return torch.cat([part.int() for part in parts], dim=1)


def unpack(packed: Tensor) -> Updated:
    """Views of what ``accept`` gives."""
    width = packed.shape[1] // 3
    canvas, bits, is_open = packed[:, : 3 * width].split(width, dim=1)
    return Updated(canvas, bits.contiguous().view(torch.float32), is_open, packed[:, 3 * width])
