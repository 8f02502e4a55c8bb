"""Where the rows of a round lie that ops process together. Knows nothing of requests."""

from typing import NamedTuple

from torch import Tensor


class Segments(NamedTuple):
    """G runs of consecutive flat rows, each of one sequence.

    Ops read flat tensors [R, ...] at ``starts[g] + t`` for t below ``lengths[g]`` and write there
    too; rows of no segment are neither read nor written.
    """

    starts: Tensor  # [G] int32 first flat row
    lengths: Tensor  # [G] int32; 0: nothing to do, so that G can be a bucket
    contexts: Tensor  # [G] int32 rows of the sequence committed before
    slots: Tensor  # [G] int32 state line of the sequence
    longest: int  # at least the largest length, known on the host; sizes the grid
