"""Gated DeltaNet mixers over the flat rows of a round: a call of an op per group, into one output.

The fast twin of the mixers' padded groups. Knows nothing of projections and norms around it.
"""

from typing import TYPE_CHECKING

from torch import Tensor

from blockdiff.cache import SlotCaches
from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.layers.trace import Trace
from blockdiff_kernels.gated_delta import commit_rows
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.implementation import TRITON, choose

if TYPE_CHECKING:
    from blockdiff.models.layers.gated_delta import GatedDeltaMixer


def goes_flat(mixer: "GatedDeltaMixer", layout: RoundLayout, like: Tensor) -> bool:
    """Whether rows of the device of ``like`` are mixed as they lie."""
    if mixer.numerics.is_deterministic or choose("gated_delta", like.device) is not TRITON:
        return False
    return all(group.flat is not None for group in layout.groups)


def mix_flat(
    mixer: "GatedDeltaMixer",
    projected: Tensor,
    layout: RoundLayout,
    caches: SlotCaches,
    trace: Trace | None,
) -> Tensor:
    """Projected rows [R, .] -> mixed [R, Hv, dv] in their dtype; rows of no segment hold anything.

    Writing groups update ``caches`` in place before previews run.
    """
    own = mixer.weights
    inputs = DeltaRows(
        rows=projected,
        conv=own.conv,
        a_log=own.a_log,
        dt_bias=own.dt_bias,
        states=caches.layer_states[mixer.index],
        tails=caches.layer_tails[mixer.index],
    )
    out = projected.new_empty(projected.shape[0], mixer.value_heads, mixer.value_dim)
    for group in layout.groups:
        assert group.flat is not None, "goes_flat has seen to it"
        if group.is_writing:
            commit_rows(inputs, group.flat.segments, group.flat.snapshots, out)
            continue
        if trace is not None:
            mixer.record(group.pad(projected), group, caches, trace)
        mixer.preview_flat(inputs, group.flat.segments, out)
    return out
