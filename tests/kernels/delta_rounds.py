"""Rounds of gated delta rows in which nothing that must not be read is a number. Holds no tests."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.segments import Segments
from tests.kernels.errors import assert_near

NAN = float("nan")
LINES = 9
GAP = 3  # rows of no segment before each


class Heads(NamedTuple):
    key: int
    value: int
    key_dim: int
    value_dim: int
    taps: int = 4

    @property
    def channels(self) -> int:
        return 2 * self.key * self.key_dim + self.value * self.value_dim


TINY = Heads(key=1, value=2, key_dim=16, value_dim=16)
SMALL = Heads(key=2, value=4, key_dim=16, value_dim=16)
ODD = Heads(key=1, value=3, key_dim=24, value_dim=40, taps=3)
WIDE = Heads(key=1, value=1, key_dim=128, value_dim=128)


def make_segments(lengths: Sequence[int], slots: Sequence[int]) -> Segments:
    """Segments with ``GAP`` rows before each."""
    starts = [GAP * (i + 1) + sum(lengths[:i]) for i in range(len(lengths))]
    arrays = (starts, lengths, [7] * len(lengths), slots)
    return Segments(*(torch.tensor(x, dtype=torch.int32) for x in arrays), max(lengths))


def make_rows(
    heads: Heads, segments: Segments, dtype: torch.dtype, seed: int = 0, repeats: bool = False
) -> DeltaRows:
    """``repeats``: all rows are the same token, written at full strength and never forgotten."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    inner, gates = heads.value * heads.value_dim, 2 * heads.value
    total = int((segments.starts + segments.lengths).max()) + GAP
    values = normal(total, heads.channels + inner + gates)
    if repeats:
        values[:] = values[:1]
        values[:, -gates : -heads.value] = 50.0
        values[:, -heads.value :] = -50.0
    store = torch.full((total, values.shape[1] + 8), NAN)
    rows = store[:, :-8]
    states = torch.full((LINES, heads.value, heads.key_dim, heads.value_dim), NAN)
    tails = torch.full((LINES, heads.taps - 1, heads.channels), NAN)
    where = (segments.starts.tolist(), segments.lengths.tolist(), segments.slots.tolist())
    for start, length, slot in zip(*where, strict=True):
        if length:
            rows[start : start + length] = values[start : start + length]
            states[slot], tails[slot] = normal(*states.shape[1:]), normal(*tails.shape[1:])
            if repeats:
                tails[slot] = rows[start, : heads.channels]
    rows[:, heads.channels : heads.channels + inner] = NAN
    return DeltaRows(
        rows=store.to(dtype)[:, :-8],
        conv=normal(heads.channels, heads.taps).to(dtype),
        a_log=normal(heads.value),
        dt_bias=normal(heads.value),
        states=states,
        tails=tails.to(dtype),
    )


def exact(inputs: DeltaRows) -> DeltaRows:
    """The same numbers in float64, in memory of their own."""
    return DeltaRows(*(x.double().clone() for x in inputs))


def check(found: Tensor, wanted: Tensor, tolerance: float | None = None) -> None:
    """The same entries are no numbers, and the others are near."""
    empty = wanted.isnan()
    assert torch.equal(found.isnan(), empty)
    assert_near(found[~empty], wanted[~empty], tolerance)
