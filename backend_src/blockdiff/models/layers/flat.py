"""What ops over flat rows need of a round, beside or instead of padded groups, on the host.

Fills a group's ``FlatGroup``; knows nothing of layers or devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blockdiff.models.base import RoundBatch
from blockdiff.models.layers.segments import GroupRows
from blockdiff.pages import NO_SNAPSHOT, Ints
from blockdiff.transfer import Array
from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.segments import Segments

# ops that go by flat rows where their kernels are chosen
FLAT_OPS = ("attention", "gated_delta")
NOT_WRITTEN = -1


@dataclass(frozen=True, eq=False)
class FlatGroup:
    """Segments of one group; all tensors int32."""

    segments: Segments
    pages: Tensor | None  # [G, P] of each segment in order of position; None: nothing is cached
    block_lengths: Tensor  # [G] the grid of block-causal commits
    snapshots: Tensor  # [G] state line that gets a copy after a writing segment, or NO_SNAPSHOT


def wants_flat(device: torch.device) -> bool:
    """Whether any op goes by flat rows on ``device``."""
    return any(choose(op, device) is TRITON for op in FLAT_OPS)


def flat_arrays(batch: RoundBatch, group: GroupRows, pages: Ints | None) -> dict[str, Array]:
    """Arrays of one group by name, as ``flat_group`` reads them."""
    members = group.members
    snapshots = np.full(len(members), NO_SNAPSHOT)
    if batch.snapshots is not None and group.is_writing:
        snapshots = batch.snapshots[members]
    found = {
        "flat_starts": batch.segment_starts[members],
        "flat_lengths": group.lengths,
        "flat_contexts": batch.contexts[members],
        "flat_slots": batch.slots[members],
        "flat_block_lengths": batch.block_lengths[members],
        "flat_snapshots": snapshots,
    }
    if pages is not None:
        found["flat_pages"] = pages
    return {name: array.astype(np.int32) for name, array in found.items()}


def flat_group(group: GroupRows, moved: Mapping[str, Tensor], own: str) -> FlatGroup | None:
    """The group of ``flat_arrays`` once moved, under names that begin with ``own``."""
    starts = moved.get(own + "flat_starts")
    if starts is None:
        return None
    return FlatGroup(
        segments=Segments(
            starts=starts,
            lengths=moved[own + "flat_lengths"],
            contexts=moved[own + "flat_contexts"],
            slots=moved[own + "flat_slots"],
            longest=group.width,
        ),
        pages=moved.get(own + "flat_pages"),
        block_lengths=moved[own + "flat_block_lengths"],
        snapshots=moved[own + "flat_snapshots"],
    )


def written_map(rows: Ints, places: Ints, total: int) -> npt.NDArray[np.int64]:
    """[R] where each flat row is written, or NOT_WRITTEN."""
    found = np.full(total, NOT_WRITTEN, np.int64)
    found[rows] = places
    return found
