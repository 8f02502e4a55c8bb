"""Full attention with per-head norms and partial rotary: plain, and with an output gate.

Knows its slice of the key-value store; knows nothing of norms around it or of checkpoints.
"""

from dataclasses import dataclass

from torch import Tensor

from blockdiff.cache import KeyValueCaches, LayerCaches
from blockdiff.config import AttentionConfig, HybridConfig
from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.layers.linear import Linear
from blockdiff_kernels.norm import rms_norm, scaled_rms_norm
from blockdiff_kernels.pointwise import Pointwise
from blockdiff_kernels.projection import Plain, Source
from blockdiff_kernels.rope import apply_rope


@dataclass
class AttentionWeights:
    """One layer's tensors, fused at load."""

    in_proj: Linear  # H -> (2 Hq + 2 Hkv) D: q | k | v | gate, heads in order; plain: no gate
    head_norm: Tensor  # [Hq + Hkv, D] the query norm, then the key norm; gated: zero-centred
    out_proj: Linear  # Hq D -> H


class GatedAttention:
    """Commits attend causally and write keys and values; previews see their whole block."""

    def __init__(
        self, config: HybridConfig, weights: AttentionWeights, index: int, pointwise: Pointwise
    ) -> None:
        self.weights = weights
        self.pointwise = pointwise
        self.index = index  # among the attention layers, which is the caches' order
        self.eps = config.rms_norm_eps
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.dim = config.head_dim

    def __call__(
        self,
        source: Source,
        layout: RoundLayout,
        caches: KeyValueCaches,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Rows [R, H] -> [R, H], added to ``residual`` if there is one.

        Keys and values of writing rows go to ``caches`` in place.
        """
        projected = self.weights.in_proj.of(source).unflatten(1, (-1, self.dim))
        sizes = (self.heads + self.kv_heads, self.kv_heads, self.heads)
        turned, value, gate = projected.split_with_sizes(sizes, dim=1)
        turned = rms_norm(turned, self.weights.head_norm, self.eps)
        turned = apply_rope(turned, layout.cos, layout.sin)
        y = attend(turned, value, layout, caches, self.index) * self.pointwise.sigmoid(gate)
        return self.weights.out_proj.of(Plain(y.flatten(1)), residual)


class PlainAttention:
    """Attention without a gate; the round's layout says whether commits go by rows or by blocks."""

    def __init__(self, config: AttentionConfig, weights: AttentionWeights, index: int) -> None:
        self.weights = weights
        self.index = index
        self.eps = config.rms_norm_eps
        self.sizes = (
            config.num_attention_heads + config.num_key_value_heads,
            config.num_key_value_heads,
        )
        self.dim = config.head_dim

    def __call__(
        self,
        source: Source,
        layout: RoundLayout,
        caches: KeyValueCaches,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Rows [R, H] -> [R, H], added to ``residual`` if there is one.

        Keys and values of writing rows go to ``caches`` in place.
        """
        projected = self.weights.in_proj.of(source).unflatten(1, (-1, self.dim))
        turned, value = projected.split_with_sizes(self.sizes, dim=1)
        turned = scaled_rms_norm(turned, self.weights.head_norm, self.eps)
        turned = apply_rope(turned, layout.cos, layout.sin)
        y = attend(turned, value, layout, caches, self.index)
        return self.weights.out_proj.of(Plain(y.flatten(1)), residual)


def attend(
    turned: Tensor,
    value: Tensor,
    layout: RoundLayout,
    caches: LayerCaches,
    index: int,
    scale: float | None = None,
) -> Tensor:
    """Write, then attend: [R, Hq + Hkv, D] query and key heads, value [R, Hkv, D] -> [R, Hq, D].

    Writing comes first, so that a preview sees the commit that rides along with it.
    """
    keys, values = caches.layer_keys[index], caches.layer_values[index]
    heads = turned.shape[1] - value.shape[1]
    _write(turned[:, heads:], value, layout, keys, values)
    mixed = []
    for group in layout.groups:
        query, key = group.pad(turned).split_with_sizes((heads, value.shape[1]), dim=2)
        own = (query, key, group.pad(value))
        mixed.append(group.look(own, (keys, values), scale))
    return layout.flatten(mixed)


def _write(key: Tensor, value: Tensor, layout: RoundLayout, keys: Tensor, values: Tensor) -> None:
    """Store rows [R, Hkv, D] of writing segments in pages [Hkv, pages, page_length, D]."""
    if layout.written_rows.numel() == 0:
        return
    for rows, store in ((key, keys), (value, values)):
        written = rows.index_select(0, layout.written_rows).transpose(0, 1)
        store.flatten(1, 2).index_copy_(1, layout.written_places, written)
