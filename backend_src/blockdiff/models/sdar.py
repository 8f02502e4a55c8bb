"""SDAR and SDAR-MoE: Qwen3's tensors, with decoding algorithms of their own.

Knows nothing of layers.
"""

from blockdiff.models.qwen3 import Qwen3Model


class SdarModel(Qwen3Model):
    """Decides small blocks; the config makes its commits block-causal."""

    algorithms = ("low_confidence", "sequential", "entropy_bounded")
