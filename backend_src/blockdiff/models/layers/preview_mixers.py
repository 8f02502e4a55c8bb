"""How a preview mixes a block in Gated DeltaNet layers, by formulation; commits are all the same.

B and C are this project's reading of public facts. A formulation is one class and one line of the
table below; knows nothing of checkpoints.
"""

from torch import Tensor

from blockdiff.cache import SlotCaches
from blockdiff.config import HybridConfig
from blockdiff.models.layers.gated_delta import GatedDeltaMixer, GatedDeltaWeights
from blockdiff.models.layers.layout import SegmentGroup
from blockdiff.models.layers.trace import Trace
from blockdiff.models.numerics import Numerics
from blockdiff_kernels.block_softmax import block_softmax, block_softmax_rows
from blockdiff_kernels.block_softmax.reference import block_probabilities
from blockdiff_kernels.conv import mirrored_taps, preview_conv
from blockdiff_kernels.gated_delta import two_sweep_rows, two_sweeps
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.segments import Segments


class TwoSweepMixer(GatedDeltaMixer):
    """Formulation B: a sweep forward from the state and one backward inside the block.

    The convolution looks both ways too: causal plus mirrored output, the row itself counted once,
    summed before the silu.
    """

    def __init__(
        self,
        config: HybridConfig,
        weights: GatedDeltaWeights,
        layer: int,
        index: int,
        numerics: Numerics,
    ) -> None:
        super().__init__(config, weights, layer, index, numerics)
        self.conv_right = mirrored_taps(weights.conv)

    def preview(self, rows: Tensor, group: SegmentGroup, caches: SlotCaches) -> Tensor:
        """Projected rows [G, T, .] of blocks -> mixed [G, T, Hv, dv]; caches are only read."""
        u, _, b, a = rows.split_with_sizes(self.split, dim=-1)
        state, tail = self.read(group, caches)
        taps, mix = (self.weights.conv, self.conv_right), self.numerics.depthwise
        q, k, v = self.heads(preview_conv(u, tail, *taps, group.mask, mix))
        return two_sweeps(q, k, v, *self.gates(a, b), state, group.mask)

    def preview_flat(self, inputs: DeltaRows, segments: Segments, out: Tensor) -> None:
        """See ``GatedDeltaMixer``."""
        two_sweep_rows(inputs, self.conv_right, segments, out)


class BlockSoftmaxMixer(GatedDeltaMixer):
    """Formulation C: right convolution taps and a softmax over the block and a history slot."""

    def __init__(
        self,
        config: HybridConfig,
        weights: GatedDeltaWeights,
        layer: int,
        index: int,
        numerics: Numerics,
    ) -> None:
        assert weights.preview is not None, "the config asks for the preview tensors"
        super().__init__(config, weights, layer, index, numerics)
        own = self.preview_weights = weights.preview
        self.vectors = (own.logit_scale, own.history_bias, own.history_c)

    def preview(self, rows: Tensor, group: SegmentGroup, caches: SlotCaches) -> Tensor:
        """Projected rows [G, T, .] of blocks -> mixed [G, T, Hv, dv]; caches are only read."""
        state, q, k, v = self._convolved(rows, group, caches)
        return block_softmax(q, k, v, state, *self.vectors, group.mask)

    def preview_flat(self, inputs: DeltaRows, segments: Segments, out: Tensor) -> None:
        """See ``GatedDeltaMixer``."""
        right = self.preview_weights.conv_right
        block_softmax_rows(inputs, right, self.vectors, segments, out)

    def record(self, rows: Tensor, group: SegmentGroup, caches: SlotCaches, trace: Trace) -> None:
        """The softmax's probabilities."""
        state, q, k, _ = self._convolved(rows, group, caches)
        probabilities, _ = block_probabilities(q, k, state, *self.vectors, group.mask)
        # [G, T, Hv, 1 + T]
        trace.record("mixer_probabilities", self.layer, probabilities.transpose(1, 2))

    def _convolved(
        self, rows: Tensor, group: SegmentGroup, caches: SlotCaches
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Projected rows [G, T, .] -> their slots' states, q, k and v."""
        state, tail = self.read(group, caches)
        u = rows[..., : self.split[0]]
        taps = (self.weights.conv, self.preview_weights.conv_right)
        convolved = preview_conv(u, tail, *taps, group.mask, self.numerics.depthwise)
        return state, *self.heads(convolved)


MIXERS: dict[str, type[GatedDeltaMixer]] = {
    "A": GatedDeltaMixer,
    "B": TwoSweepMixer,
    "C": BlockSoftmaxMixer,
}
