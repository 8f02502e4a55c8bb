"""clover_moe: the hybrid trunk with formulation C previews in its Gated DeltaNet layers.

The preview formula is this project's reading of public facts, not a confirmed one; it lives in
``BlockSoftmaxMixer`` and its op alone, so that it can be replaced.
"""

from blockdiff.models.hybrid import HybridModel
from blockdiff.models.layers.gated_delta import BlockSoftmaxMixer
from blockdiff.models.source import WeightSource
from blockdiff.models.weights import delta_weights, preview_weights


class CloverMoeModel(HybridModel):
    """Causal prefill and commit, block-bidirectional preview."""

    formulation = "C"

    def make_mixer(self, source: WeightSource, layer: int, index: int) -> BlockSoftmaxMixer:
        """The delta mixer of ``layer`` with its four preview tensors."""
        own, extra = delta_weights(source, layer), preview_weights(source, layer)
        return BlockSoftmaxMixer(self.config, own, extra, layer, index)
