"""Attention of an encoder that writes keys and values and a canvas decoder that only reads them.

Query and key norms with a plain weight, value norm without one, products not scaled. Knows its
slice of the caches; knows nothing of norms around it or of checkpoints.
"""

from dataclasses import dataclass

from torch import Tensor

from blockdiff.cache import CanvasCaches
from blockdiff.config import AttentionShape
from blockdiff.models.layers.attention import attend
from blockdiff.models.layers.canvas_rows import RingGroup, RingLayout, RingWave
from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.layers.linear import Linear
from blockdiff_kernels.norm import plain_rms_norm
from blockdiff_kernels.projection import Plain, Source
from blockdiff_kernels.rope import apply_rope

NO_SCALING = 1.0


@dataclass
class CanvasAttentionWeights:
    """One layer's tensors, fused at load."""

    in_proj: Linear  # H -> (Hq + Hkv or 2 Hkv) D: q | k | v; without v the keys serve as values
    head_norm: Tensor  # [Hq + Hkv, D] the query norm, then the key norm
    out_proj: Linear  # Hq D -> H


class CanvasAttention:
    """Writing rows see themselves and what is before; canvas rows the whole prefix and canvas."""

    def __init__(
        self, weights: CanvasAttentionWeights, shape: AttentionShape, eps: float, index: int
    ) -> None:
        self.weights = weights
        self.shape = shape
        self.eps = eps
        self.index = index

    def __call__(
        self, source: Source, layout: RoundLayout, rings: RingLayout, caches: CanvasCaches
    ) -> Tensor:
        """Rows [R, H] -> [R, H]; keys and values of writing rows go to ``caches`` in place.

        ``layout`` has the angles of this kind of layer.
        """
        turned, value = self._project(source, layout.cos, layout.sin)
        y = self.attend(turned, value, layout, rings, caches)
        return self.weights.out_proj.of(Plain(y.flatten(1)))

    def attend(
        self,
        turned: Tensor,
        value: Tensor,
        layout: RoundLayout,
        rings: RingLayout,
        caches: CanvasCaches,
    ) -> Tensor:
        """Query and key heads [R, Hq + Hkv, D] and value [R, Hkv, D] -> [R, Hq, D]."""
        return attend(turned, value, layout, caches, self.index, NO_SCALING)

    def _project(self, source: Source, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        shape = self.shape
        projected = self.weights.in_proj.of(source).unflatten(1, (-1, shape.head_dim))
        turning = self.weights.head_norm.shape[0]
        turned, value = projected[:, :turning], projected[:, -shape.kv_heads :]
        turned = plain_rms_norm(turned, self.weights.head_norm, self.eps)
        return apply_rope(turned, cos, sin), plain_rms_norm(value, None, self.eps)


class SlidingCanvasAttention(CanvasAttention):
    """Rows see a window of committed positions, kept in a ring; canvas rows see their canvas too.

    A canvas row of a window w sees the last w - 1 committed positions, wherever it stands.
    """

    def attend(
        self,
        turned: Tensor,
        value: Tensor,
        layout: RoundLayout,
        rings: RingLayout,
        caches: CanvasCaches,
    ) -> Tensor:
        """Query and key heads [R, Hq + Hkv, D] and value [R, Hkv, D] -> [R, Hq, D]."""
        mixed = []
        for wave in rings.waves:
            # A ring may lose what its own rows still see, so these are read before they are
            # written; canvases come last and see the commit that rides along.
            mixed += [self._look(turned, value, group, caches) for group in wave.groups]
            self._write(turned, value, wave, caches)
        mixed += [self._look(turned, value, group, caches) for group in rings.canvases]
        return layout.flatten(mixed)

    def _look(
        self, turned: Tensor, value: Tensor, group: RingGroup, caches: CanvasCaches
    ) -> Tensor:
        heads, rows = turned.shape[1] - value.shape[1], group.rows
        query, key = rows.pad(turned).split_with_sizes((heads, value.shape[1]), dim=2)
        # every place of the rings is a page of its own
        keys, values = (self._places(store).unsqueeze(2) for store in self._rings(caches))
        return group.look((query, key, rows.pad(value)), (keys, values), NO_SCALING)

    def _write(self, turned: Tensor, value: Tensor, wave: RingWave, caches: CanvasCaches) -> None:
        key = turned[:, turned.shape[1] - value.shape[1] :]
        for rows, store in zip((key, value), self._rings(caches), strict=True):
            kept = rows.index_select(0, wave.kept_rows).transpose(0, 1)
            self._places(store).index_copy_(1, wave.kept_places, kept)
            if wave.snapshots is not None:
                lines, copies = wave.snapshots
                store.index_copy_(1, copies, store.index_select(1, lines))

    def _rings(self, caches: CanvasCaches) -> tuple[Tensor, Tensor]:
        return caches.layer_keys[self.index], caches.layer_values[self.index]

    @staticmethod
    def _places(store: Tensor) -> Tensor:
        """Rings [Hkv, lines, places, D] laid end to end [Hkv, lines * places, D]."""
        return store.flatten(1, 2)
