"""Index maps of a round for encoder-decoder models: which rows are canvas, and sliding windows.

Complements ``host_layout`` and ``layout``; knows nothing of layers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from blockdiff.models.base import RoundBatch
from blockdiff.models.layers.filled_maps import repeat, snapshot_lines
from blockdiff.models.layers.host_layout import HostLayout
from blockdiff.models.layers.layout import RoundLayout, SegmentGroup
from blockdiff.models.layers.looks import Look, Sight
from blockdiff.models.layers.segments import GroupRows
from blockdiff.models.numerics import Numerics
from blockdiff.models.round_shape import RoundShape
from blockdiff.pages import Ints
from blockdiff.transfer import Array
from blockdiff_kernels.attention import window_visibility


@dataclass
class CanvasRows:
    """The preview rows of a round."""

    is_canvas: Tensor  # [R] int64, 1 for preview rows, 0 for the encoder's
    rows: Tensor  # [P] flat rows of previews
    slots: Tensor  # [P]
    places: Tensor  # [P] in the canvas

    @classmethod
    def of(cls, moved: Mapping[str, Tensor]) -> "CanvasRows":
        """Those of ``CanvasHostLayout``, once moved."""
        return cls(*(moved[f"canvas.{name}"] for name in ("is_canvas", "rows", "slots", "places")))


@dataclass(frozen=True, eq=False)
class CanvasHostLayout(HostLayout):
    """A layout whose arrays also say where canvases and rings lie."""

    waves: tuple[tuple[int, ...], ...]
    """Groups of each wave of writing segments."""


def _canvas_arrays(batch: RoundBatch, shape: RoundShape | None) -> dict[str, Array]:
    """Where the canvases of ``batch`` lie."""
    owners = batch.owners
    rows = np.flatnonzero(~batch.is_writing[owners])
    is_canvas = np.zeros(len(batch.token_ids), np.int64)
    is_canvas[rows] = 1
    owners = owners[rows]
    maps = {
        "canvas.rows": rows,
        "canvas.slots": batch.slots[owners],
        "canvas.places": batch.positions[rows] - batch.contexts[owners],
    }
    if shape is not None:
        maps = {name: repeat(own, shape.previews * shape.width) for name, own in maps.items()}
    return {"canvas.is_canvas": is_canvas, **maps}


@dataclass
class RingGroup:
    """A group of the layout with what it needs to attend over rings."""

    rows: SegmentGroup
    make_look: Callable[[], Look]

    @cached_property
    def look(self) -> Look:
        """At the last positions before each context and at own rows; as ``SegmentGroup.look``."""
        return self.make_look()


@dataclass
class RingWave:
    """Writing groups that look at the rings before any of their rows is written."""

    groups: tuple[RingGroup, ...]  # in the order of the layout's groups
    kept_rows: Tensor  # [W] flat rows that a later row can still see
    kept_places: Tensor  # [W]
    snapshots: tuple[Tensor, Tensor] | None  # lines [N] and the lines [N] that get their copies


@dataclass
class RingLayout:
    """Rings of one capacity: where windows are read and which rows are kept.

    Places are those of all lines laid end to end.
    """

    waves: tuple[RingWave, ...]
    canvases: tuple[RingGroup, ...]


def make_canvas_host_layout(
    layout: HostLayout, capacity: int, shape: RoundShape | None
) -> CanvasHostLayout:
    """``layout`` with the maps of its canvases and of rings of ``capacity`` places."""
    batch = layout.batch
    arrays = layout.arrays | _canvas_arrays(batch, shape)
    waves: dict[int, list[int]] = {}
    for number, group in enumerate(layout.groups):
        if group.wave is not None:
            waves.setdefault(group.wave, []).append(number)
        places = _read_places(batch, group, capacity, is_full=shape is not None)
        if places is not None:
            arrays[f"{number}.ring_places"] = places
    for wave, numbers in enumerate(waves.values()):
        segments = np.concatenate([layout.groups[number].members for number in numbers])
        for name, array in _wave_arrays(batch, segments, capacity, shape).items():
            arrays[f"ring{wave}.{name}"] = array
    return CanvasHostLayout(
        batch,
        arrays,
        layout.groups,
        layout.page_length,
        layout.block_count,
        waves=tuple(tuple(numbers) for numbers in waves.values()),
    )


def make_ring_layout(
    host: CanvasHostLayout,
    layout: RoundLayout,
    moved: Mapping[str, Tensor],
    window: int,
    numerics: Numerics,
) -> RingLayout:
    """The rings of ``host``, whose arrays are ``moved``, for a sliding ``window`` of positions."""
    rings = [
        _ring_group(group, moved.get(f"{number}.ring_places"), window, numerics)
        for number, group in enumerate(layout.groups)
    ]
    return RingLayout(
        waves=tuple(
            _wave(tuple(rings[number] for number in numbers), moved, f"ring{wave}.")
            for wave, numbers in enumerate(host.waves)
        ),
        canvases=tuple(ring for ring in rings if not ring.rows.is_writing),
    )


def _read_places(batch: RoundBatch, group: GroupRows, capacity: int, is_full: bool) -> Ints | None:
    contexts = batch.contexts[group.members, None]
    cached = capacity if is_full else min(int(contexts.max()), capacity)
    if not cached:
        return None
    lines = batch.slots[group.members, None] * capacity
    # places before position 0 wrap around to rows that are not visible
    places: Ints = lines + (contexts + np.arange(-cached, 0)) % capacity
    return places


def _wave_arrays(
    batch: RoundBatch, segments: Ints, capacity: int, shape: RoundShape | None
) -> dict[str, Array]:
    """What the writing ``segments`` of one wave leave in the rings."""
    owners, ends = batch.owners, batch.contexts + batch.lengths
    is_kept = np.isin(owners, segments) & (
        batch.positions[: len(owners)] >= (ends - capacity)[owners]
    )
    rows = np.flatnonzero(is_kept)
    lines = batch.slots[owners[rows]]
    found: dict[str, Array] = {
        "rows": rows,
        "kept": lines * capacity + batch.positions[rows] % capacity,
    }
    if shape is not None:
        found = {name: repeat(own, shape.writing * shape.width) for name, own in found.items()}
        found["from"], found["to"] = batch.slots[segments], snapshot_lines(batch, shape)
        return found
    if batch.snapshots is not None:
        chosen = segments[batch.snapshots[segments] >= 0]
        if len(chosen):
            found["from"], found["to"] = batch.slots[chosen], batch.snapshots[chosen]
    return found


def _wave(groups: tuple[RingGroup, ...], moved: Mapping[str, Tensor], own: str) -> RingWave:
    source = moved.get(own + "from")
    return RingWave(
        groups=groups,
        kept_rows=moved[own + "rows"],
        kept_places=moved[own + "kept"],
        snapshots=None if source is None else (source, moved[own + "to"]),
    )


def _ring_group(
    rows: SegmentGroup, places: Tensor | None, window: int, numerics: Numerics
) -> RingGroup:
    def make_look() -> Look:
        width, lengths, visible = rows.host.width, rows.lengths, None
        if places is not None or rows.is_writing or lengths is not None:
            if lengths is None:
                lengths = torch.full_like(rows.contexts, width)
            cached = 0 if places is None else places.shape[1]
            sizes = (width, cached, rows.is_writing, window)
            visible = window_visibility(rows.contexts, lengths, *sizes)
        # every place of the rings is a page of its own
        sight = Sight(rows.contexts, width, places, 1, visible, rows.mask, is_ring=True)
        return numerics.look(sight)

    return RingGroup(rows, make_look)
