"""What the engine sees of a model: its facts, one round's rows, and the calls it answers.

Knows nothing of how a family computes, of requests, of sampling or of text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blockdiff.core import Phase
from blockdiff.model_info import ModelInfo
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.pages import CachePool, CacheRoom, CacheSizes, CacheWork, Ints
from blockdiff_kernels.head import Peaks, Rules


@dataclass(frozen=True)
class Segment:
    """The rows of one request in one phase of one round, before they become tensors."""

    phase: Phase
    slot: int
    context: int  # tokens committed before the first row, a commit riding in this round included
    token_ids: Sequence[int]
    logit_rows: Sequence[int] = field(default_factory=tuple)  # row numbers inside this segment
    block_length: int = 1  # grid of a block-causal commit; causal families do not look at it


@dataclass(frozen=True, eq=False)
class RoundBatch:
    """One round, on the host: rows of a segment contiguous; the model moves what it needs.

    A slot may have several writing segments (PREFILL or COMMIT), in order, and then one PREVIEW
    segment: in every layer the n-th writing segments are done before the next ones and all of them
    before any preview, so each sees what earlier ones wrote. ``contexts`` counts their rows.
    """

    token_ids: Ints  # [R], mask id where masked
    positions: Ints  # [R], absolute
    segment_starts: Ints  # [S + 1], cumulative rows
    phases: Ints  # [S], values of Phase
    slots: Ints  # [S]
    contexts: Ints  # [S]
    logit_rows: Ints  # [L], rows whose logits are wanted, in output order
    block_lengths: Ints  # [S], the grid of block-causal commits
    # [S, P] pages of the segment's slot in order of position: all that contexts and rows need,
    # and then any valid page; None: slots have pages of their own
    pages: Ints | None = None
    # [S] state line that gets a copy of the slot's state after this writing segment, or
    # NO_SNAPSHOT; None: no copies
    snapshots: Ints | None = None

    @classmethod
    def from_segments(
        cls,
        segments: Sequence[Segment],
        pages: Ints | None = None,
        snapshots: Ints | None = None,
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

        def array(values: Sequence[int]) -> Ints:
            return np.array(values, np.int64)

        return cls(
            token_ids=array(tokens),
            positions=array(positions),
            segment_starts=array(starts),
            phases=array([int(s.phase) for s in segments]),
            slots=array([s.slot for s in segments]),
            contexts=array([s.context for s in segments]),
            logit_rows=array(logit_rows),
            block_lengths=array([s.block_length for s in segments]),
            pages=pages,
            snapshots=snapshots,
        )

    @cached_property
    def lengths(self) -> Ints:
        """[S] rows of each segment."""
        return np.diff(self.segment_starts)

    @cached_property
    def is_writing(self) -> npt.NDArray[np.bool_]:
        """[S] whether a segment writes."""
        return self.phases != int(Phase.PREVIEW)

    @cached_property
    def owners(self) -> Ints:
        """[R] segment of each row; of rows of no segment, which come last, there is nothing."""
        return np.repeat(np.arange(len(self.slots)), self.lengths)


class ModelCaches(Protocol):
    """A model's memory: keys and values in pages, what else there is in state lines."""

    room: CacheRoom

    def prepare(self, work: CacheWork) -> None:
        """Copy and clear pages, then reset and restore state lines, in place, before a round."""
        ...


class OutputHead(NamedTuple):
    """What ``head`` multiplies hidden rows with."""

    weight: Tensor  # [V, H]
    cap: float | None  # soft bound of logits


class BlockDiffusionModel(Protocol):
    """A loaded checkpoint. Stateless: everything about requests is in the caches."""

    info: ModelInfo
    device: torch.device

    @property
    def output_head(self) -> OutputHead | None:
        """For kernels that choose tokens without logits; None: ``head`` is the only way."""
        ...

    def new_caches(
        self, num_slots: int, max_context: int, pool: CachePool | None = None
    ) -> ModelCaches:
        """Preallocate caches for ``num_slots`` requests of up to ``max_context`` tokens.

        ``pool``: memory that they share by page; None: each has pages of its own.
        """
        ...

    def cache_sizes(self, page_length: int, max_context: int | None = None) -> CacheSizes:
        """Bytes on one device of a page and of a state line.

        A line may depend on ``max_context`` (None: the model's): a ring is never longer.
        """
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

    def expect_rows(self, hidden: Tensor, rules: Rules, peaks: Peaks) -> Tensor:
        """The same from hidden rows [L, H] and what ``choose`` said of them; with a head only."""
        ...

    def store_signals(
        self, caches: ModelCaches, signals: Tensor, slots: Tensor, places: Tensor
    ) -> None:
        """Keep signals [L, H] for places [L] of the canvases of slots [L] int64, in place."""
        ...

    def forget_signals(self, caches: ModelCaches, slots: Tensor) -> None:
        """The next previews of slots [N] int64 are first steps, which have no signal."""
        ...
