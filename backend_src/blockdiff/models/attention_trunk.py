"""Attention-only models: every layer attends, then feeds forward.

The config says whether commits are causal or block-causal; a family adds the names and shapes of
its tensors. Knows nothing of files, requests or sampling.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from blockdiff.cache import KeyValueCaches, key_value_sizes
from blockdiff.config import BLOCK_CAUSAL, AttentionConfig
from blockdiff.model_info import NO_CONTROL_TOKEN, NO_MASK_TOKEN
from blockdiff.models.base import (
    ModelCaches,
    ModelInfo,
    RoundBatch,
)
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.models.expert_layout import ExpertLayout
from blockdiff.models.layers.attention import AttentionWeights, PlainAttention
from blockdiff.models.layers.flat import attends_flat, wants_flat
from blockdiff.models.layers.host_layout import HostLayout, LayoutRules, make_host_layout
from blockdiff.models.layers.layout import Rotary, make_layout
from blockdiff.models.layers.linear import concat_rows
from blockdiff.models.layers.mlp import DenseMlp, FeedForward, make_routed_experts
from blockdiff.models.layers.routers import make_router
from blockdiff.models.layers.row_blocks import BlockCover
from blockdiff.models.layers.trace import Trace
from blockdiff.models.round_shape import RoundShape
from blockdiff.models.share import Share
from blockdiff.models.source import ExpertNames, WeightSource
from blockdiff.models.trunk import LanguageModel, rows_to_finish
from blockdiff.models.weights import Shapes, expert_shapes
from blockdiff.pages import CachePool, CacheSizes, make_room
from blockdiff_kernels.embedding import embedding as take_rows
from blockdiff_kernels.norm import scaled_rms_norm
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.projection import Normed


@dataclass
class Layer:
    """One layer, by its parts in the order they run."""

    input_norm: Tensor  # [H]
    attention: PlainAttention
    middle_norm: Tensor  # [H]
    feed_forward: FeedForward


class AttentionModel(LanguageModel):
    """Previews see their whole block; prefill and commit see rows or blocks, as the config says."""

    embedding_name = "embed_tokens.weight"
    shared_expert_name = "mlp.shared_experts."
    algorithms: tuple[str, ...] = ("low_confidence",)
    supports_editing = False
    config: AttentionConfig

    def __init__(self, config: AttentionConfig, source: WeightSource, share: Share) -> None:
        self.config = config
        self.formulation = config.commits
        embedding = source.tensor(self.embedding_name)
        self.final_norm = source.tensor("norm.weight")
        output = embedding if config.tie_word_embeddings else source.tensor("lm_head.weight")
        super().__init__(self.make_info(), embedding, output, share, source.numerics)
        self.layers = [
            Layer(
                input_norm=source.tensor(f"layers.{number}.input_layernorm.weight"),
                attention=PlainAttention(config, self.attention_weights(source, number), number),
                middle_norm=source.tensor(f"layers.{number}.post_attention_layernorm.weight"),
                feed_forward=self._feed_forward(source, number),
            )
            for number in range(config.num_hidden_layers)
        ]

    @abstractmethod
    def attention_weights(self, source: WeightSource, layer: int) -> AttentionWeights:
        """The attention tensors of ``layer``."""

    @classmethod
    @abstractmethod
    def attention_shapes(cls, config: AttentionConfig) -> Shapes:
        """The attention tensors of one layer, by name below the layer."""

    @classmethod
    def shapes(cls, config: AttentionConfig, layout: ExpertLayout) -> Shapes:
        """Every tensor a checkpoint of this config must hold."""
        hidden, vocab = config.hidden_size, config.vocab_size
        found: Shapes = {cls.embedding_name: (vocab, hidden), "norm.weight": (hidden,)}
        if not config.tie_word_embeddings:
            found["lm_head.weight"] = (vocab, hidden)
        for layer in range(config.num_hidden_layers):
            own = cls.attention_shapes(config)
            own |= {f"{x}_layernorm.weight": (hidden,) for x in ("input", "post_attention")}
            if layer in config.dense_layers:
                own |= _mlp_shapes("mlp.", config.intermediate_size, hidden)
            else:
                own |= cls._router_shapes(config, layout)
            found |= {f"layers.{layer}.{name}": shape for name, shape in own.items()}
        return found

    @classmethod
    def _router_shapes(cls, config: AttentionConfig, layout: ExpertLayout) -> Shapes:
        router, hidden = config.router, config.hidden_size
        assert router is not None, "a config without experts has dense layers only"
        count, inner = router.num_experts, router.moe_intermediate_size
        found: Shapes = {"mlp.gate.weight": (count, hidden)}
        if router.has_bias:
            found["mlp.gate.expert_bias"] = (count,)
        if router.shared_intermediate_size:
            found |= _mlp_shapes(cls.shared_expert_name, router.shared_intermediate_size, hidden)
        return found | expert_shapes(layout, count, inner, hidden)

    def _feed_forward(self, source: WeightSource, layer: int) -> FeedForward:
        own, router = f"layers.{layer}.mlp.", self.config.router
        if layer in self.config.dense_layers:
            gate_up = concat_rows([source.linear(f"{own}{x}_proj") for x in ("gate", "up")])
            down = source.linear(own + "down_proj")
            return DenseMlp(gate_up, down, source.numerics.pointwise)
        assert router is not None, "a config without experts has dense layers only"
        has_shared = router.shared_intermediate_size > 0
        names = ExpertNames(
            routed=own + "experts.",
            count=router.num_experts,
            inner=router.moe_intermediate_size,
            shared=f"layers.{layer}.{self.shared_expert_name}" if has_shared else None,
        )
        gate = source.tensor(own + "gate.weight")
        bias = gate.new_zeros(router.num_experts)
        if router.has_bias:
            bias = source.tensor(own + "gate.expert_bias")
        choose = make_router(router, bias, source.numerics.pointwise)
        return make_routed_experts(choose, gate, source.experts(names), source.numerics)

    def new_caches(
        self, num_slots: int, max_context: int, pool: CachePool | None = None
    ) -> KeyValueCaches:
        """Preallocated caches; see ``models.base``."""
        own = self.config
        room = make_room(num_slots, max_context, own.block_size, pool)
        sizes = (own.num_hidden_layers, own.num_key_value_heads, own.head_dim)
        return KeyValueCaches(room, *sizes, self.final_norm)

    def cache_sizes(self, page_length: int, max_context: int | None = None) -> CacheSizes:
        """Bytes of a page and of a state line; see ``models.base``."""
        return key_value_sizes(self.config, page_length, self.dtype)

    def prepare(
        self, batch: RoundBatch, caches: ModelCaches, shape: RoundShape | None = None
    ) -> HostLayout:
        """The index maps of ``batch``, on the host; ``shape``: filled up to it."""
        own = self.config
        has_pools = own.router is not None and own.router.capacity > 0
        rules = LayoutRules(
            is_block_causal=own.commits == BLOCK_CAUSAL,
            cover=BlockCover.ALL if has_pools else None,
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
        assert isinstance(caches, KeyValueCaches), "caches come from new_caches"
        own = self.config
        layout = make_layout(host, moved, Rotary(own.rotary_dim, own.rope_theta), self.numerics)
        eps = own.rms_norm_eps
        finishing = rows_to_finish(layout, trace)
        x = self.embed(layout.token_ids)
        for number, layer in enumerate(self.layers):
            rows = Normed(x, layer.input_norm, eps, NormKind.SCALED)
            x = self.add(x, partial(layer.attention, rows, layout, caches))
            if finishing is not None and layer is self.layers[-1]:
                x, layout = take_rows(finishing, x), layout.finishing()
                if not len(x):
                    break
            own_hits = None if hits is None else hits.of(number, layout.row_count)
            rows = Normed(x, layer.middle_norm, eps, NormKind.SCALED)
            x = self.add(x, partial(layer.feed_forward, rows, layout, own_hits))
            if trace is not None:
                trace.record("layer_outputs", number, x)
        if finishing is None:
            x = take_rows(layout.logit_rows, x)
        return scaled_rms_norm(x, self.final_norm, eps)

    def make_info(self) -> ModelInfo:
        """What the engine needs to know of this checkpoint."""
        own = self.config
        # pools were trained for blocks of this size
        has_pools = own.router is not None and own.router.capacity > 0
        delete, split = own.length_tokens or (NO_CONTROL_TOKEN, NO_CONTROL_TOKEN)
        return ModelInfo(
            model_type=own.model_type,
            vocab_size=own.vocab_size,
            block_length=own.block_size,
            mask_token_id=NO_MASK_TOKEN if own.mask_token_id is None else own.mask_token_id,
            eos_token_ids=own.eos_token_ids,
            max_context=own.max_position_embeddings,
            default_threshold=own.default_threshold,
            block_lengths_allowed=(own.block_size,) if has_pools else None,
            allows_short_blocks=not has_pools,
            block_anchor=own.block_anchor,
            supports_autoregressive=own.commits != BLOCK_CAUSAL,
            supports_editing=self.supports_editing,
            delete_token_id=delete,
            split_token_id=split,
            algorithms=self.algorithms,
            num_experts=0 if own.router is None else own.router.num_experts,
            expert_layers=own.expert_layers,
        )


def _mlp_shapes(own: str, inner: int, hidden: int) -> Shapes:
    return {
        f"{own}gate_proj.weight": (inner, hidden),
        f"{own}up_proj.weight": (inner, hidden),
        f"{own}down_proj.weight": (hidden, inner),
    }
