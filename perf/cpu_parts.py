"""What of a denoising step is timed by itself, as a model's own parts on random rows.

Knows the hybrid model's layers; knows nothing of clocks or of which implementation runs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from blockdiff.cache import SlotCaches
from blockdiff.config import LINEAR
from blockdiff.decoding.sampling import RowSampling, choose_tokens
from blockdiff.models.hybrid import HybridModel
from blockdiff.models.layers.layout import Rotary, RoundLayout, make_layout
from blockdiff.models.layers.sparse_moe import SparseMoe
from blockdiff.planning.families import describe
from blockdiff.planning.speed.step import Rows, step_kernels
from blockdiff.planning.speed.weights import WeightFormat
from blockdiff.transfer import to_device
from blockdiff_kernels.cost import Cost
from blockdiff_kernels.moe import route, with_shared
from blockdiff_kernels.moe.cost import experts_cost
from blockdiff_kernels.projection import Plain
from blockdiff_kernels.projection.cost import cost as projection_cost
from perf.random_model import filled_caches, preview_round

CONTEXT = 512


@dataclass(frozen=True)
class Part:
    """One thing to time; ``work`` gives what the implementations must agree on."""

    name: str
    times: int  # in a step
    flops: float  # of one call
    work: Callable[[], Tensor]


def step_flops(model: HybridModel, slots: int) -> float:
    """Floating-point operations of a step by the ops' own costs."""
    own = model.config
    rows = own.block_size * slots
    asked = Rows(slots, own.block_size, CONTEXT, rows, own.num_experts)
    kernels = step_kernels(describe(own), asked, WeightFormat())
    return sum(kernel.times * kernel.cost.flops for kernel in kernels)


def whole_step(model: HybridModel, slots: int) -> Callable[[], Tensor]:
    """One preview of every slot, its logits and its tokens; gives the logits before the mask's."""
    caches, batch = filled_caches(model, slots, CONTEXT), preview_round(model, slots, CONTEXT)
    sampling = RowSampling(never=(model.info.mask_token_id,))

    @torch.inference_mode()
    def step() -> Tensor:
        logits = model.head(model.hidden(batch, caches))
        choose_tokens(logits, sampling)
        # the choice bars the mask, whose logit says nothing any more
        return logits[:, : model.info.mask_token_id]

    return step


def parts(model: HybridModel, slots: int) -> list[Part]:
    """Parts of a step; the first layer of a kind stands for all of its kind."""
    own = model.config
    caches = filled_caches(model, slots, CONTEXT)
    layout = _layout(model, caches, slots)
    rows = own.block_size * slots
    x = _rows(model, rows, own.hidden_size)
    delta = next(layer for layer in model.layers if layer.delta is not None)
    full = next(layer for layer in model.layers if layer.attention is not None)
    assert delta.delta is not None and full.attention is not None
    moe = delta.moe
    assert isinstance(moe, SparseMoe), "on a CPU experts are no kernels'"
    deltas = own.layer_types.count(LINEAR)
    softmaxes = len(own.layer_types) - deltas
    found = []
    for name, times, linear in (
        ("delta in-projection", deltas, delta.delta.weights.in_proj),
        ("delta out-projection", deltas, delta.delta.weights.out_proj),
        ("attention in-projection", softmaxes, full.attention.weights.in_proj),
        ("attention out-projection", softmaxes, full.attention.weights.out_proj),
        ("router", len(own.layer_types), moe.weights.router),
    ):
        read = _rows(model, rows, linear.in_features)
        flops = projection_cost(rows, linear.in_features, linear.out_features).flops
        found.append(Part(name, times, flops, _bound(linear, read)))
    mixer, attention = delta.delta, full.attention
    return [
        *found,
        _experts(model, moe, x),
        Part("head", 1, _head(model, rows).flops, lambda: model.head(x)),
        Part("delta mixer, all", deltas, 0, lambda: mixer(Plain(x), layout, caches, None)),
        Part("attention, all", softmaxes, 0, lambda: attention(Plain(x), layout, caches)),
    ]


def _experts(model: HybridModel, moe: SparseMoe, x: Tensor) -> Part:
    own = model.config
    # the same choices in every dtype
    logits = _rows(model, x.shape[0], own.num_experts + 1).float()
    routing, gate = logits.split_with_sizes((own.num_experts, 1), dim=1)
    weights, ids = route(routing, own.num_experts_per_tok)
    weights, ids = with_shared(weights, ids, gate, own.num_experts, moe.weights.experts.count)
    sizes = (own.hidden_size, own.moe_intermediate_size)
    flops = experts_cost(x.shape[0], own.num_experts, ids.shape[1], *sizes, 0).flops
    experts = moe.weights.experts
    return Part("experts", len(model.layers), flops, lambda: experts(x, weights, ids))


def _head(model: HybridModel, rows: int) -> Cost:
    return projection_cost(rows, model.hidden_size, model.info.vocab_size)


def _bound(linear: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    return lambda: linear(x)


def _rows(model: HybridModel, rows: int, width: int) -> Tensor:
    """Random rows of bfloat16 numbers in the model's dtype."""
    generator = torch.Generator().manual_seed(width)
    return torch.randn(rows, width, generator=generator).bfloat16().to(model.dtype)


def _layout(model: HybridModel, caches: SlotCaches, slots: int) -> RoundLayout:
    host = model.prepare(preview_round(model, slots, CONTEXT), caches)
    rotary = Rotary(model.config.rotary_dim, model.config.rope_theta)
    return make_layout(host, to_device(host.arrays, model.device), rotary, model.numerics)
