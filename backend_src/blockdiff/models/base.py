"""What the engine sees of a model: its facts, one round's rows, and the calls it answers.

Knows nothing of how a family computes, of requests, of sampling or of text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from blockdiff.config import UniformDefaults
from blockdiff.core import Phase
from blockdiff.models.expert_hits import ExpertHits

NO_MASK_TOKEN = -1
NO_CONTROL_TOKEN = -1


@dataclass(frozen=True)
class ModelInfo:
    """Facts of a loaded checkpoint. Filled by the model from its config, never changed."""

    model_type: str
    vocab_size: int
    block_length: int  # the trained one, used when a request names none
    mask_token_id: int  # NO_MASK_TOKEN: the checkpoint has none, so no block can start as masks
    eos_token_ids: tuple[int, ...]
    max_context: int
    default_threshold: float = 0.9
    block_lengths_allowed: tuple[int, ...] | None = None  # None: any from 1 up
    block_anchor: str = "prompt_end"  # or "zero": block b covers positions b*B..(b+1)*B-1
    supports_autoregressive: bool = True
    supports_editing: bool = False
    # tokens of insert and delete editing, both or neither; like the mask they are never output
    delete_token_id: int = NO_CONTROL_TOKEN
    split_token_id: int = NO_CONTROL_TOKEN
    algorithms: tuple[str, ...] = ("low_confidence",)  # the first one is the default
    uniform: UniformDefaults | None = None  # set: canvases start as random tokens, not as masks
    num_experts: int = 0  # routed ones of a layer
    expert_layers: tuple[int, ...] = ()  # numbers of the layers that have them

    @property
    def decodes_blocks(self) -> bool:
        """Whether there is anything that a block could start as."""
        return self.mask_token_id >= 0 or self.uniform is not None

    @property
    def edits_length(self) -> bool:
        """Whether token editing may also insert and delete."""
        return self.delete_token_id >= 0

    @property
    def control_token_ids(self) -> tuple[int, ...]:
        """Tokens that no output holds."""
        own = (self.mask_token_id, self.delete_token_id, self.split_token_id)
        return tuple(token for token in own if token >= 0)


@dataclass(frozen=True)
class Segment:
    """The rows of one request in one phase of one round, before they become tensors."""

    phase: Phase
    slot: int
    context: int  # tokens committed before the first row, a commit riding in this round included
    token_ids: Sequence[int]
    logit_rows: Sequence[int] = field(default_factory=tuple)  # row numbers inside this segment
    block_length: int = 1  # grid of a block-causal commit; causal families do not look at it


@dataclass
class RoundBatch:
    """One round: flat tensors on the model's device, rows of a segment contiguous.

    A slot may have one writing segment (PREFILL or COMMIT) and, after it, one PREVIEW segment: in
    every layer all writing segments are done before any preview, so the preview sees the commit.
    ``contexts`` of such a preview counts the rows of the riding commit.
    """

    token_ids: Tensor  # [R] int64, mask id where masked
    positions: Tensor  # [R] int64, absolute
    segment_starts: Tensor  # [S + 1] int64, cumulative rows
    phases: Tensor  # [S] int64, values of Phase
    slots: Tensor  # [S] int64
    contexts: Tensor  # [S] int64
    logit_rows: Tensor  # [L] int64, rows whose logits are wanted, in output order
    block_lengths: Tensor  # [S] int64, the grid of block-causal commits

    @classmethod
    def from_segments(
        cls, segments: Sequence[Segment], device: torch.device | str = "cpu"
    ) -> "RoundBatch":
        """Flatten ``segments`` in order; positions run on from each segment's context."""
        tokens: list[int] = []
        positions: list[int] = []
        starts = [0]
        logit_rows: list[int] = []
        for segment in segments:
            count = len(segment.token_ids)
            logit_rows += [starts[-1] + row for row in segment.logit_rows]
            tokens += segment.token_ids
            positions += range(segment.context, segment.context + count)
            starts.append(starts[-1] + count)

        def tensor(values: Sequence[int]) -> Tensor:
            return torch.tensor(values, dtype=torch.int64, device=device)

        return cls(
            token_ids=tensor(tokens),
            positions=tensor(positions),
            segment_starts=tensor(starts),
            phases=tensor([int(s.phase) for s in segments]),
            slots=tensor([s.slot for s in segments]),
            contexts=tensor([s.context for s in segments]),
            logit_rows=tensor(logit_rows),
            block_lengths=tensor([s.block_length for s in segments]),
        )


class ModelCaches(Protocol):
    """Per-slot memory of a model: keys, values, recurrent states, convolution tails."""

    num_slots: int
    max_context: int
    lengths: Tensor  # [num_slots] int64, committed tokens per slot

    def reset(self, slots: Tensor) -> None:
        """Forget everything about ``slots`` [N] int64: lengths and states become zero, in place."""
        ...


class BlockDiffusionModel(Protocol):
    """A loaded checkpoint. Stateless: everything about requests is in the caches."""

    info: ModelInfo
    device: torch.device

    def new_caches(self, num_slots: int, max_context: int) -> ModelCaches:
        """Preallocate caches for ``num_slots`` requests of up to ``max_context`` tokens."""
        ...

    def hidden(
        self, batch: RoundBatch, caches: ModelCaches, *, hits: ExpertHits | None = None
    ) -> Tensor:
        """Run one round; final normalised hidden rows [L, H] of ``batch.logit_rows``.

        PREFILL and COMMIT segments write ``caches`` in place, PREVIEW segments only read them.
        The experts that all rows choose are added to ``hits``, which has the lines of
        ``info.expert_layers``.
        """
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [L, V] float32 of hidden rows [L, H]."""
        ...

    def forward(self, batch: RoundBatch, caches: ModelCaches) -> Tensor:
        """``head(hidden(batch, caches))``: logits [L, V] float32."""
        ...

    def check(self) -> None:
        """Raise EngineDeadError when the model can no longer compute; costs next to nothing.

        Results count only when it returns after they have reached the host.
        """
        ...


@runtime_checkable
class ConditionedModel(BlockDiffusionModel, Protocol):
    """A model whose previews also read what the previous step expected: one signal per place."""

    def expect(self, logits: Tensor) -> Tensor:
        """Signals [L, H] that (scaled) logits [L, V] of one step give the next one."""
        ...

    def store_signals(
        self, caches: ModelCaches, signals: Tensor, slots: Tensor, places: Tensor
    ) -> None:
        """Keep signals [L, H] for places [L] of the canvases of slots [L] int64, in place."""
        ...

    def forget_signals(self, caches: ModelCaches, slots: Tensor) -> None:
        """The next previews of slots [N] int64 are first steps, which have no signal."""
        ...
