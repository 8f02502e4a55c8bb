"""Gated DeltaNet token mixer: the causal scan, for commits and for the plainest of previews.

Knows the fused projection and its slot's state; knows nothing of norms around it or of checkpoints.
"""

from dataclasses import dataclass

from torch import Tensor

from blockdiff.cache import SlotCaches
from blockdiff.config import HybridConfig
from blockdiff.models.layers.commits import commit_at_once, commit_on_grid
from blockdiff.models.layers.flat_delta import goes_flat, mix_flat
from blockdiff.models.layers.layout import RoundLayout, SegmentGroup
from blockdiff.models.layers.linear import Linear
from blockdiff.models.layers.trace import Trace
from blockdiff.models.numerics import Numerics
from blockdiff_kernels.conv import causal_conv
from blockdiff_kernels.gated_delta import decay_and_beta, gated_delta, preview_rows
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.projection import GatedNormed, Source
from blockdiff_kernels.segments import Segments


@dataclass
class PreviewWeights:
    """The four preview tensors of formulation C."""

    conv_right: Tensor  # [C, k - 1]
    logit_scale: Tensor  # [Hv]
    history_bias: Tensor  # [Hv]
    history_c: Tensor  # [Hv]


@dataclass
class GatedDeltaWeights:
    """One layer's tensors. Vectors and the gated norm stay float32 in every model dtype."""

    in_proj: Linear  # H -> C + Hv dv + 2 Hv: qkv | z | b | a
    conv: Tensor  # [C, k]
    a_log: Tensor  # [Hv]
    dt_bias: Tensor  # [Hv]
    norm: Tensor  # [dv]
    out_proj: Linear  # Hv dv -> H
    preview: PreviewWeights | None = None


class GatedDeltaMixer:
    """Formulation A: a preview is the causal scan of the block that writes nothing back."""

    def __init__(
        self,
        config: HybridConfig,
        weights: GatedDeltaWeights,
        layer: int,
        index: int,
        numerics: Numerics,
    ) -> None:
        self.weights = weights
        self.numerics = numerics
        self.commit = commit_on_grid if numerics.is_deterministic else commit_at_once
        self.layer = layer  # in the model
        self.index = index  # among the delta layers, which is the caches' order
        self.eps = config.rms_norm_eps
        self.key_heads = config.linear_num_key_heads
        self.value_heads = config.linear_num_value_heads
        self.key_dim = config.linear_key_head_dim
        self.value_dim = config.linear_value_head_dim
        inner = self.value_heads * self.value_dim
        self.split = (config.conv_channels, inner, self.value_heads, self.value_heads)

    def __call__(
        self,
        source: Source,
        layout: RoundLayout,
        caches: SlotCaches,
        trace: Trace | None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """Rows [R, H] -> [R, H], added to ``residual`` if there is one.

        Writing groups update ``caches`` in place before previews run.
        """
        projected = self.weights.in_proj.of(source)
        _, z, _, _ = projected.split_with_sizes(self.split, dim=-1)
        mix = mix_flat if goes_flat(self, layout, projected) else mix_padded
        y = mix(self, projected, layout, caches, trace)
        gate = z.view(-1, self.value_heads, self.value_dim)
        heads = GatedNormed(y, gate, self.weights.norm, self.eps, self.numerics.pointwise)
        return self.weights.out_proj.of(heads, residual)

    def preview(self, rows: Tensor, group: SegmentGroup, caches: SlotCaches) -> Tensor:
        """Projected rows [G, T, .] of blocks -> mixed [G, T, Hv, dv]; caches are only read."""
        return self.scan(rows, group, caches)[0]

    def preview_flat(self, inputs: DeltaRows, segments: Segments, out: Tensor) -> None:
        """``preview`` of flat rows: ``segments`` of ``inputs`` into rows of out [R, Hv, dv]."""
        preview_rows(inputs, segments, out)

    def record(self, rows: Tensor, group: SegmentGroup, caches: SlotCaches, trace: Trace) -> None:
        """What a preview of rows [G, T, .] has to tell of how it mixes: nothing here."""

    def scan(
        self, rows: Tensor, group: SegmentGroup, caches: SlotCaches
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Projected rows of segments -> mixed, and what their slots would have: state and tail."""
        u, _, b, a = rows.split_with_sizes(self.split, dim=-1)
        state, tail = self.read(group, caches)
        mix = self.numerics.depthwise
        convolved, tail = causal_conv(u, tail, self.weights.conv, group.lengths, mix)
        q, k, v = self.heads(convolved)
        mixed, state = gated_delta(q, k, v, *self.gates(a, b), state, group.mask)
        return mixed, state, tail

    def read(self, group: SegmentGroup, caches: SlotCaches) -> tuple[Tensor, Tensor]:
        """Copies of the group's states [G, Hv, dk, dv] and tails [G, k - 1, C]."""
        state = caches.layer_states[self.index].index_select(0, group.slots)
        return state, caches.layer_tails[self.index].index_select(0, group.slots)

    def gates(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """Log decay and write strength [G, T, Hv] float32 of the projected a and b."""
        own = self.weights
        return decay_and_beta(a, b, own.a_log, own.dt_bias, self.numerics.pointwise)

    def heads(self, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[G, T, C] -> q, k [G, T, Hk, dk] and v [G, T, Hv, dv]."""
        keys = self.key_heads * self.key_dim
        q, k, v = convolved.split_with_sizes((keys, keys, self.split[1]), dim=-1)
        shape = convolved.shape[:2]
        return (
            q.view(*shape, self.key_heads, self.key_dim),
            k.view(*shape, self.key_heads, self.key_dim),
            v.view(*shape, self.value_heads, self.value_dim),
        )


def mix_padded(
    mixer: GatedDeltaMixer,
    projected: Tensor,
    layout: RoundLayout,
    caches: SlotCaches,
    trace: Trace | None,
) -> Tensor:
    """Projected rows [R, .] -> mixed [R, Hv, dv], group by padded group.

    Writing groups update ``caches`` in place before previews run.
    """
    mixed = []
    for group in layout.groups:
        rows = group.pad(projected)
        if group.is_writing:
            mixed.append(mixer.commit(mixer, rows, group, caches))
            continue
        if trace is not None:
            mixer.record(rows, group, caches, trace)
        mixed.append(mixer.preview(rows, group, caches))
    return layout.flatten(mixed)
