"""The hybrid trunk: Gated DeltaNet and gated attention layers, each followed by sparse experts.

The config names the formulation of previews. Knows nothing of files, requests or sampling.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from blockdiff.cache import GridCaches, SlotCaches, slot_cache_sizes
from blockdiff.config import LINEAR, CoresetConfig, HybridConfig
from blockdiff.model_info import NO_MASK_TOKEN
from blockdiff.models.base import ModelCaches, ModelInfo, RoundBatch
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.models.layers.attention import GatedAttention
from blockdiff.models.layers.flat import attends_flat, wants_flat
from blockdiff.models.layers.fused_experts import FusedExperts
from blockdiff.models.layers.gated_delta import GatedDeltaMixer
from blockdiff.models.layers.host_layout import HostLayout, LayoutRules, make_host_layout
from blockdiff.models.layers.layout import Rotary, RoundLayout, make_layout
from blockdiff.models.layers.preview_mixers import MIXERS
from blockdiff.models.layers.routers import CoresetRouter
from blockdiff.models.layers.row_blocks import BlockCover
from blockdiff.models.layers.sparse_moe import SparseMoe, make_sparse_moe
from blockdiff.models.layers.trace import Trace
from blockdiff.models.round_shape import RoundShape
from blockdiff.models.share import Share
from blockdiff.models.source import WeightSource
from blockdiff.models.trunk import LanguageModel, Summand, rows_to_finish
from blockdiff.models.weights import attention_weights, delta_weights, moe_weights
from blockdiff.pages import CachePool, CacheSizes, make_room
from blockdiff_kernels.embedding import embedding as take_rows
from blockdiff_kernels.norm import rms_norm
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.projection import Normed, Plain, Source


@dataclass
class Layer:
    """One layer; exactly one of the two mixers is set."""

    input_norm: Tensor  # [H] zero-centred
    delta: GatedDeltaMixer | None
    attention: GatedAttention | None
    mixer_norm: Tensor  # [H] zero-centred, before the experts
    moe: SparseMoe | FusedExperts


class HybridModel(LanguageModel):
    """Causal prefill and commit; previews see their block by the config's formulation."""

    config: HybridConfig

    def __init__(self, config: HybridConfig, source: WeightSource, share: Share) -> None:
        self.config = config
        self.formulation = config.preview_formulation
        embedding = source.tensor("embed_tokens.weight")
        self.final_norm = source.tensor("norm.weight")
        output = embedding if config.tie_word_embeddings else source.tensor("lm_head.weight")
        super().__init__(_info(config), embedding, output, share, source.numerics)
        seen: dict[str, int] = {}
        self.layers: list[Layer] = []
        for layer, kind in enumerate(config.layer_types):
            index = seen.get(kind, 0)
            seen[kind] = index + 1
            self.layers.append(self._layer(source, layer, index))

    def _layer(self, source: WeightSource, layer: int, index: int) -> Layer:
        config = self.config
        delta = attention = None
        if config.layer_types[layer] == LINEAR:
            mixer = MIXERS[config.preview_formulation]
            places = (layer, index)
            delta = mixer(config, delta_weights(source, layer, config), *places, source.numerics)
        else:
            weights = attention_weights(source, layer, config)
            attention = GatedAttention(config, weights, index, source.numerics.pointwise)
        return Layer(
            input_norm=source.tensor(f"layers.{layer}.input_layernorm.weight"),
            delta=delta,
            attention=attention,
            mixer_norm=source.tensor(f"layers.{layer}.post_attention_layernorm.weight"),
            moe=self._moe(source, layer),
        )

    def _moe(self, source: WeightSource, layer: int) -> SparseMoe | FusedExperts:
        config = self.config
        weights = moe_weights(source, layer, config)
        sizes = (config.num_experts, config.num_experts_per_tok)
        choose = None if config.coreset is None else CoresetRouter(config.coreset, sizes[1])
        return make_sparse_moe(weights, *sizes, source.numerics, choose)

    def new_caches(
        self, num_slots: int, max_context: int, pool: CachePool | None = None
    ) -> SlotCaches:
        """Preallocated caches; see ``models.base``."""
        room = make_room(num_slots, max_context, self.config.block_size, pool)
        kind = GridCaches if self.numerics.is_deterministic else SlotCaches
        return kind(room, self.config, self.final_norm)

    def cache_sizes(self, page_length: int, max_context: int | None = None) -> CacheSizes:
        """Bytes of a page and of a state line; see ``models.base``."""
        return slot_cache_sizes(
            self.config, page_length, self.dtype, self.numerics.is_deterministic
        )

    def prepare(
        self, batch: RoundBatch, caches: ModelCaches, shape: RoundShape | None = None
    ) -> HostLayout:
        """The index maps of ``batch``, on the host; ``shape``: filled up to it."""
        coreset = self.config.coreset
        rules = LayoutRules(
            cover=None if coreset is None else _cover(coreset),
            separates_blocks=self.numerics.is_deterministic,
            is_flat=wants_flat(self.device),
            attends_flat=attends_flat(self.device, self.numerics.is_deterministic),
        )
        return make_host_layout(batch, caches.room, rules, shape)

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
        assert isinstance(caches, SlotCaches), "caches come from new_caches"
        own = self.config
        layout = make_layout(host, moved, Rotary(own.rotary_dim, own.rope_theta), self.numerics)
        finishing = rows_to_finish(layout, trace)
        x = self.embed(layout.token_ids)
        for number, layer in enumerate(self.layers):
            x = self._mix(layer, number, x, layout, caches, trace)
            if finishing is not None and layer is self.layers[-1]:
                x, layout = take_rows(finishing, x), layout.finishing()
                if not len(x):
                    break
            own_hits = None if hits is None else hits.of(number, layout.row_count)
            rows = Normed(x, layer.mixer_norm, own.rms_norm_eps, NormKind.ZERO_CENTRED)
            x = self.add(x, partial(layer.moe, rows, layout, own_hits))
            if trace is not None:
                trace.record("layer_outputs", number, x)
        if trace is not None:
            trace.gather("mixer_probabilities", 2, self.group)
        if finishing is None:
            x = take_rows(layout.logit_rows, x)
        return rms_norm(x, self.final_norm, own.rms_norm_eps)

    def _mix(
        self,
        layer: Layer,
        number: int,
        x: Tensor,
        layout: RoundLayout,
        caches: SlotCaches,
        trace: Trace | None,
    ) -> Tensor:
        rows: Source = Normed(x, layer.input_norm, self.config.rms_norm_eps, NormKind.ZERO_CENTRED)
        if trace is not None:
            rows = Plain(rows.rows())
            trace.record("mixer_input", number, rows.x)
        if layer.delta is not None:
            mix: Summand = partial(layer.delta, rows, layout, caches, trace)
        else:
            assert layer.attention is not None
            mix = partial(layer.attention, rows, layout, caches)
        if trace is None:
            return self.add(x, mix)
        mixed = self.group.all_reduce(mix(None))
        trace.record("mixer_output", number, mixed)
        return x + mixed


def _cover(coreset: CoresetConfig) -> BlockCover:
    return BlockCover.ALL if coreset.covers_writing else BlockCover.PREVIEWS


def _info(config: HybridConfig) -> ModelInfo:
    mask = NO_MASK_TOKEN if config.mask_token_id is None else config.mask_token_id
    return ModelInfo(
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        block_length=config.block_size,
        mask_token_id=mask,
        eos_token_ids=config.eos_token_ids,
        max_context=config.max_position_embeddings,
        default_threshold=config.default_threshold,
        block_anchor=config.block_anchor,
        allows_short_blocks=config.coreset is None,
        # single tokens and their prompts know no grid of blocks
        supports_autoregressive=config.coreset is None or not config.coreset.covers_writing,
        num_experts=config.num_experts,
        expert_layers=tuple(range(len(config.layer_types))),
    )
