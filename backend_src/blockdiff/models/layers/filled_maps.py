"""Index maps of a batch that was filled up to a shape, all as long as the shape says.

What stands in for a row or a segment that is not there repeats what a real one does, or copies a
state line onto itself. Knows nothing of layers or devices.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from blockdiff.models.base import RoundBatch
from blockdiff.models.round_shape import RoundShape
from blockdiff.pages import Ints
from blockdiff.transfer import Array

NO_BLOCK = -1


def filled_maps(
    arrays: Mapping[str, Array], batch: RoundBatch, shape: RoundShape
) -> dict[str, Array]:
    """Those of ``arrays`` whose length would be the round's, in the length of ``shape``."""
    count = shape.writing * shape.width
    found = {name: repeat(arrays[name], count) for name in ("written_rows", "written_places")}
    if "blocks" in arrays:
        missing = shape.rows - len(arrays["blocks"])
        found["blocks"] = np.pad(arrays["blocks"], (0, missing), constant_values=NO_BLOCK)
    if shape.writing:
        found["0.snapshot_members"] = np.arange(shape.writing)
        found["0.snapshot_lines"] = snapshot_lines(batch, shape)
    return found


def repeat(numbers: npt.NDArray[np.generic], count: int) -> npt.NDArray[np.generic]:
    """``numbers`` again and again until there are ``count``."""
    assert len(numbers) or not count, "a shape's segments are not all fillers"
    return np.resize(numbers, count)


def snapshot_lines(batch: RoundBatch, shape: RoundShape) -> Ints:
    """[writing] state line that a writing segment's state is copied to; its own: no snapshot."""
    assert batch.snapshots is not None, "a filled batch has them"
    lines, slots = batch.snapshots[: shape.writing], batch.slots[: shape.writing]
    return np.where(lines < 0, slots, lines)
