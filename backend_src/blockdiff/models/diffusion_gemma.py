"""DiffusionGemma, text only: one backbone as causal encoder and as bidirectional canvas decoder.

Encoder rows (prefill and commit) write keys and values; canvas rows (previews) read them and are
conditioned on what the previous step expected. Knows the family's tensor names; knows nothing of
files, requests or sampling.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from blockdiff.cache import CanvasCaches, LayerShape, canvas_cache_sizes
from blockdiff.config import SLIDING, DiffusionGemmaConfig
from blockdiff.model_info import NO_MASK_TOKEN
from blockdiff.models.base import ModelCaches, ModelInfo, RoundBatch
from blockdiff.models.diffusion_gemma_weights import (
    attention_weights,
    feed_forward,
    self_conditioning,
)
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.models.layers.canvas_attention import CanvasAttention, SlidingCanvasAttention
from blockdiff.models.layers.canvas_rows import (
    CanvasHostLayout,
    CanvasRows,
    RingLayout,
    make_canvas_host_layout,
    make_ring_layout,
)
from blockdiff.models.layers.embedding import make_embedding
from blockdiff.models.layers.flat import attends_flat, wants_flat
from blockdiff.models.layers.host_layout import HostLayout, LayoutRules, make_host_layout
from blockdiff.models.layers.layout import Rotary, RoundLayout, make_layout
from blockdiff.models.layers.parallel_experts import ParallelFeedForward
from blockdiff.models.layers.trace import Trace
from blockdiff.models.round_shape import RoundShape
from blockdiff.models.share import Share
from blockdiff.models.source import WeightSource
from blockdiff.models.trunk import LanguageModel, rows_to_finish
from blockdiff.pages import CachePool, CacheSizes, make_room
from blockdiff_kernels.embedding import embedding as take_rows
from blockdiff_kernels.head import Peaks, Rules, expect
from blockdiff_kernels.norm import plain_rms_norm
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.norm.sums import Factors, add_normed
from blockdiff_kernels.projection import Normed
from blockdiff_kernels.rope import proportional_angles
from blockdiff_kernels.self_conditioning import expected_embedding


@dataclass
class Layer:
    """One layer, by its parts in the order they run."""

    input_norm: Tensor  # [H]
    attention: CanvasAttention
    attention_norm: Tensor  # [H], after it
    feed_forward: ParallelFeedForward
    scalars: Tensor  # [2] factors of the layer's output: encoder, decoder


class DiffusionGemmaModel(LanguageModel):
    """A loaded checkpoint. Every canvas row sees its whole canvas."""

    formulation = "canvas"
    config: DiffusionGemmaConfig

    def __init__(self, config: DiffusionGemmaConfig, source: WeightSource, share: Share) -> None:
        self.config = config
        embedding = source.tensor("decoder.embed_tokens.weight")
        super().__init__(_info(config), embedding, embedding, share, source.numerics)
        self.logit_cap = config.final_logit_softcapping
        self.final_norm = source.tensor("decoder.norm.weight")
        # in the dtype of embeddings, as the family defines it
        scale = torch.tensor(config.hidden_size**0.5, dtype=embedding.dtype, device="cpu")
        self.scale = scale.item()
        self.embed = make_embedding(embedding, share.group, self.scale)
        self.conditioning = self_conditioning(source, config, share.group)
        self.layers = [self._layer(source, number) for number in range(config.num_hidden_layers)]

    def _layer(self, source: WeightSource, number: int) -> Layer:
        own, config = f"decoder.layers.{number}.", self.config
        is_sliding = config.layer_types[number] == SLIDING
        kind = SlidingCanvasAttention if is_sliding else CanvasAttention
        weights, shape = attention_weights(source, number, config), config.attention(number)
        encoder_scalar = source.tensor(f"encoder.language_model.layers.{number}.layer_scalar")
        return Layer(
            input_norm=source.tensor(own + "input_layernorm.weight"),
            attention=kind(weights, shape, config.rms_norm_eps, number),
            attention_norm=source.tensor(own + "post_attention_layernorm.weight"),
            feed_forward=feed_forward(source, number, config, self.group),
            scalars=torch.cat((encoder_scalar, source.tensor(own + "layer_scalar"))),
        )

    def new_caches(
        self, num_slots: int, max_context: int, pool: CachePool | None = None
    ) -> CanvasCaches:
        """Preallocated caches; see ``models.base``."""
        own = self.config
        room = make_room(num_slots, max_context, own.block_size, pool)
        signals = (own.block_size, own.hidden_size)
        return CanvasCaches(room, self._cache_shapes(max_context), signals, self.final_norm)

    def cache_sizes(self, page_length: int, max_context: int | None = None) -> CacheSizes:
        """Bytes of a page and of a state line; see ``models.base``."""
        longest = self.info.max_context if max_context is None else max_context
        return canvas_cache_sizes(self._cache_shapes(longest), page_length, self.dtype)

    def _cache_shapes(self, max_context: int) -> list[LayerShape]:
        found = []
        for number in range(self.config.num_hidden_layers):
            own = self.config.attention(number)
            places = None if own.window is None else own.kept_positions(max_context)
            found.append(LayerShape(own.kv_heads, own.head_dim, places))
        return found

    def prepare(
        self, batch: RoundBatch, caches: ModelCaches, shape: RoundShape | None = None
    ) -> CanvasHostLayout:
        """The index maps of ``batch``, on the host; ``shape``: filled up to it."""
        is_deterministic = self.numerics.is_deterministic
        rules = LayoutRules(
            separates_blocks=is_deterministic,
            is_flat=wants_flat(self.device),
            attends_flat=attends_flat(self.device, is_deterministic),
        )
        layout = make_host_layout(batch, caches.room, rules, shape)
        capacity = self.config.sliding.kept_positions(caches.room.max_context)
        return make_canvas_host_layout(layout, capacity, shape)

    @torch.inference_mode()
    def run(
        self,
        host: HostLayout,
        moved: Mapping[str, Tensor],
        caches: ModelCaches,
        trace: Trace | None = None,
        hits: ExpertHits | None = None,
    ) -> Tensor:
        """Final normalised hidden rows [L, H]; see ``LanguageModel``."""
        assert isinstance(caches, CanvasCaches), "caches come from new_caches"
        assert isinstance(host, CanvasHostLayout), "layouts come from prepare"
        eps = self.config.rms_norm_eps
        full, sliding, rings = self._layouts(host, moved)
        canvas = CanvasRows.of(moved)
        x = self.embed(full.token_ids)
        if canvas.rows.numel():
            signal = caches.signals[canvas.slots, canvas.places]
            x[canvas.rows] = self.conditioning(take_rows(canvas.rows, x), signal)
        finishing, is_canvas = rows_to_finish(full, trace), canvas.is_canvas
        for number, layer in enumerate(self.layers):
            layout = sliding if self.config.layer_types[number] == SLIDING else full
            rows = Normed(x, layer.input_norm, eps, NormKind.PLAIN)
            mixed = layer.attention(rows, layout, rings, caches)
            mixed = self.group.all_reduce(mixed)
            x = add_normed(x, mixed, layer.attention_norm, eps)
            if finishing is not None and layer is self.layers[-1]:
                x, is_canvas = take_rows(finishing, x), is_canvas.index_select(0, finishing)
                layout = layout.finishing()
                if not len(x):
                    break
            own_hits = None if hits is None else hits.of(number, layout.row_count)
            factors = Factors(layer.scalars, is_canvas)
            x = layer.feed_forward(x, factors, layout, own_hits)
            if trace is not None:
                trace.record("layer_outputs", number, x)
        if finishing is None:
            x = take_rows(full.logit_rows, x)
        return plain_rms_norm(x, self.final_norm, eps)

    def _layouts(
        self, host: CanvasHostLayout, moved: Mapping[str, Tensor]
    ) -> tuple[RoundLayout, RoundLayout, RingLayout]:
        """The round with the angles of full layers, with those of sliding layers, and its rings."""
        own = self.config
        found = []
        rotary = Rotary(own.full.head_dim, own.full.rotary.theta)
        layout = make_layout(host, moved, rotary, self.numerics)
        for shape in (own.full, own.sliding):
            turning = (shape.head_dim, shape.rotary.pairs, shape.rotary.theta)
            cos, sin = proportional_angles(layout.positions, *turning)
            found.append(replace(layout, cos=cos, sin=sin))
        window = own.sliding.window
        assert window is not None, "sliding layers have a window"
        rings = make_ring_layout(host, layout, moved, window, self.numerics)
        return found[0], found[1], rings

    @torch.inference_mode()
    def expect(self, scaled_logits: Tensor) -> Tensor:
        """The signal [L, H] that logits [L, V] of one step give the next step of a canvas."""
        scale, first = self.config.hidden_size**0.5, self.group.rank * self.output.shape[0]

        def expected(rows: Tensor) -> Tensor:
            return expected_embedding(rows, self.output, scale, first)

        key = ("expect", *self.output.shape)
        return self.group.all_reduce(self.numerics.run(key, expected, scaled_logits))

    @torch.inference_mode()
    def expect_rows(self, hidden: Tensor, rules: Rules, peaks: Peaks) -> Tensor:
        """See ``models.base``."""
        assert self.output_head is not None, "rows and their probabilities are all here"
        own = expect(hidden, *self.output_head, rules, peaks)
        return own * self.scale

    def store_signals(
        self, caches: ModelCaches, signals: Tensor, slots: Tensor, places: Tensor
    ) -> None:
        """Keep signals [L, H] for places [L] of the canvases of slots [L], in place."""
        assert isinstance(caches, CanvasCaches), "caches come from new_caches"
        caches.signals[slots, places] = signals

    def forget_signals(self, caches: ModelCaches, slots: Tensor) -> None:
        """The next previews of slots [N] int64 are first steps, which have no signal."""
        assert isinstance(caches, CanvasCaches), "caches come from new_caches"
        caches.signals.index_fill_(0, slots, 0)


def _info(config: DiffusionGemmaConfig) -> ModelInfo:
    return ModelInfo(
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        block_length=config.block_size,
        mask_token_id=NO_MASK_TOKEN,
        eos_token_ids=config.eos_token_ids,
        max_context=config.max_position_embeddings,
        block_lengths_allowed=(config.block_size,),
        allows_short_blocks=False,
        supports_autoregressive=False,
        algorithms=("entropy_bound",),
        uniform=config.diffusion,
        num_experts=config.num_experts,
        expert_layers=tuple(range(config.num_hidden_layers)),
    )
