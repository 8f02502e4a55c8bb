"""Plain torch definition of gated delta layers over flat rows: pad, convolve, mix, put back.

Knows nothing of layers. Serves tests, and blocks longer than kernels take.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from blockdiff_kernels.conv.reference import causal_conv, preview_conv
from blockdiff_kernels.gated_delta.reference import decay_and_beta, gated_delta, two_sweeps
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.segments import Segments


class Padded:
    """Flat rows of segments as [G, T, .], T the longest, and the way back; syncs with no device."""

    def __init__(self, segments: Segments, total: int) -> None:
        steps = torch.arange(segments.longest, device=segments.starts.device)
        self.lengths = segments.lengths.long()
        self.slots = segments.slots.long()
        self.mask = steps < self.lengths.unsqueeze(1)
        self.rows = segments.starts.long().unsqueeze(1) + steps
        # padding goes to a row of its own behind the last
        self.rows = torch.where(self.mask, self.rows, total)

    def pad(self, flat: Tensor) -> Tensor:
        """[R, .] -> [G, T, .], zeros where there is no row."""
        with_zero = torch.cat((flat, flat.new_zeros(1, *flat.shape[1:])))
        return with_zero.index_select(0, self.rows.flatten()).view(*self.rows.shape, -1)

    def put(self, padded: Tensor, out: Tensor) -> None:
        """[G, T, ...] into ``out`` [R, ...]."""
        _put(padded.flatten(0, 1), self.rows.flatten(), out)

    def keep(self, new: Tensor, lines: Tensor, numbers: Tensor) -> None:
        """[G, ...] into lines of these numbers; none for segments without rows, or below zero."""
        is_kept = (self.lengths > 0) & (numbers >= 0)
        _put(new, torch.where(is_kept, numbers.long(), lines.shape[0]), lines)


def _put(new: Tensor, places: Tensor, store: Tensor) -> None:
    """Rows of ``new`` into ``store``; the place behind its last one is nowhere."""
    longer = torch.cat((store, store[:1]))
    longer.index_copy_(0, places, new.to(store.dtype))
    store.copy_(longer[:-1])


Heads = tuple[Tensor, Tensor, Tensor]
Mix = Callable[[Heads, tuple[Tensor, Tensor], Tensor, Tensor], Tensor]


def commit_rows(
    inputs: DeltaRows, segments: Segments, snapshots: Tensor | None, out: Tensor
) -> None:
    """See the package."""
    padded = Padded(segments, inputs.rows.shape[0])
    u, gates = _inputs(inputs, padded)
    state, tail = (lines[padded.slots] for lines in (inputs.states, inputs.tails))
    convolved, tail = causal_conv(u, tail, inputs.conv, padded.lengths)
    mixed, state = gated_delta(*_heads(inputs, convolved), *gates, state, padded.mask)
    padded.put(mixed, out)
    for numbers in (padded.slots,) if snapshots is None else (padded.slots, snapshots):
        padded.keep(state, inputs.states, numbers)
        padded.keep(tail, inputs.tails, numbers)


def preview_rows(inputs: DeltaRows, segments: Segments, out: Tensor) -> None:
    """See the package."""
    preview_with(inputs, None, segments, out, lambda heads, gates, state, mask: gated_delta(
        *heads, *gates, state, mask
    )[0])  # fmt: skip


def two_sweep_rows(
    inputs: DeltaRows, right_weight: Tensor, segments: Segments, out: Tensor
) -> None:
    """See the package."""
    preview_with(inputs, right_weight, segments, out, lambda heads, gates, state, mask: two_sweeps(
        *heads, *gates, state, mask
    ))  # fmt: skip


def preview_with(
    inputs: DeltaRows, right_weight: Tensor | None, segments: Segments, out: Tensor, mix: Mix
) -> None:
    """A preview whose convolved heads, gates and states become rows of ``out`` by ``mix``."""
    padded = Padded(segments, inputs.rows.shape[0])
    u, gates = _inputs(inputs, padded)
    state, tail = (lines[padded.slots] for lines in (inputs.states, inputs.tails))
    if right_weight is None:
        convolved, _ = causal_conv(u, tail, inputs.conv, padded.lengths)
    else:
        convolved = preview_conv(u, tail, inputs.conv, right_weight, padded.mask)
    padded.put(mix(_heads(inputs, convolved), gates, state, padded.mask), out)


def _inputs(inputs: DeltaRows, padded: Padded) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    channels, value_heads = inputs.conv.shape[0], inputs.a_log.shape[0]
    rows = padded.pad(inputs.rows)
    b, a = rows[..., -2 * value_heads :].chunk(2, dim=-1)
    return rows[..., :channels], decay_and_beta(a, b, inputs.a_log, inputs.dt_bias)


def _heads(inputs: DeltaRows, convolved: Tensor) -> Heads:
    _, value_heads, key_dim, value_dim = inputs.states.shape
    keys = inputs.key_heads * key_dim
    q, k, v = convolved.split_with_sizes((keys, keys, value_heads * value_dim), dim=-1)
    return (
        q.unflatten(-1, (inputs.key_heads, key_dim)),
        k.unflatten(-1, (inputs.key_heads, key_dim)),
        v.unflatten(-1, (value_heads, value_dim)),
    )
