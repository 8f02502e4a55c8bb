"""Rank 0's view of a model that several processes share: to the engine it is one model.

Every call is told to the other ranks first and then run here on this rank's part. Knows nothing
of requests or of how a family computes.
"""

import weakref
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from blockdiff.cache import LayerCaches
from blockdiff.models.base import ModelCaches, OutputHead, RoundBatch
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.models.layers.trace import Trace
from blockdiff.models.trunk import LanguageModel
from blockdiff.pages import CachePool, CacheSizes, CacheWork
from blockdiff.parallel.group import DistributedGroup
from blockdiff.parallel.launch import Follower
from blockdiff.parallel.messages import Command, encode, pack_batch, pack_pool, pack_work
from blockdiff.parallel.ranks import Ranks

Result = TypeVar("Result")


class ParallelCaches:
    """This rank's caches and the number by which the other ranks know theirs."""

    def __init__(self, model: "ParallelModel", number: int, own: LayerCaches) -> None:
        self.model = model
        self.number = number
        self.own = own
        self.room = own.room

    def prepare(self, work: CacheWork) -> None:
        """Do ``work`` on every rank; see ``models.base``."""
        message = encode(Command.PREPARE, self.number, rest=pack_work(work))
        self.model.together(message, lambda: self.own.prepare(work))


class ParallelModel:
    """A ``BlockDiffusionModel`` on all ranks; one thread at a time may call it.

    Any call raises EngineDeadError, naming the rank, once one of them has died or is stuck;
    nothing works afterwards.
    """

    def __init__(self, own: LanguageModel, group: DistributedGroup, ranks: Ranks) -> None:
        """``own`` is this rank's part, whose layers exchange through ``group``."""
        self.own = own
        self.info = own.info
        self.device = own.device
        self.config = own.config
        self.formulation = own.formulation
        self.group = group
        self._ranks = ranks
        self._caches: weakref.WeakValueDictionary[int, ParallelCaches] = (
            weakref.WeakValueDictionary()
        )
        self._next_number = 0

    @property
    def output_head(self) -> OutputHead | None:
        """None: every rank has a part of the vocabulary, and what the engine needs is gathered."""
        return None

    def new_caches(
        self, num_slots: int, max_context: int, pool: CachePool | None = None
    ) -> ParallelCaches:
        """Caches on every rank, for its heads; those no longer used here are freed there."""
        number, self._next_number = self._next_number, self._next_number + 1
        rest = [*pack_pool(pool), *self._caches]
        message = encode(Command.NEW_CACHES, number, num_slots, max_context, rest=rest)
        own = self.together(message, lambda: self.own.new_caches(num_slots, max_context, pool))
        caches = ParallelCaches(self, number, own)
        self._caches[number] = caches
        return caches

    def cache_sizes(self, page_length: int, max_context: int | None = None) -> CacheSizes:
        """See ``models.base``; all ranks have caches of the same size."""
        return self.own.cache_sizes(page_length, max_context)

    def hidden(
        self,
        batch: RoundBatch,
        caches: ModelCaches,
        trace: Trace | None = None,
        hits: ExpertHits | None = None,
    ) -> Tensor:
        """See ``models.base``; ``trace`` is filled with whole tensors.

        All ranks choose the same experts, so this one's ``hits`` are the model's.
        """
        assert isinstance(caches, ParallelCaches), "caches come from new_caches"
        wants_trace = int(trace is not None)
        message = encode(Command.ROUND, caches.number, wants_trace, rest=pack_batch(batch))
        return self.together(message, lambda: self.own.hidden(batch, caches.own, trace, hits))

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """See ``models.base``."""
        message = encode(Command.HEAD, hidden.shape[0])
        return self.together(message, lambda: self.own.head(self.group.broadcast(hidden)))

    def forward(self, batch: RoundBatch, caches: ModelCaches) -> Tensor:
        """See ``models.base``."""
        return self.head(self.hidden(batch, caches))

    def slot_states(self, caches: ModelCaches, slot: int, length: int) -> dict[str, Tensor]:
        """See ``LanguageModel``; the states of all ranks' heads."""
        assert isinstance(caches, ParallelCaches), "caches come from new_caches"
        message = encode(Command.STATES, caches.number, slot, length)
        return self.together(message, lambda: self.own.slot_states(caches.own, slot, length))

    @property
    def followers(self) -> Sequence[Follower]:
        """The processes of the other ranks."""
        return self._ranks.followers

    @property
    def rank_bytes_read(self) -> list[int]:
        """Bytes of weights that each rank has read."""
        others = [follower.reports[0]["bytes_read"] for follower in self.followers]
        return [self.own.bytes_read, *others]

    def check(self) -> None:
        """See ``models.base``."""
        self._ranks.check()

    def close(self) -> None:
        """End the other ranks; the model cannot be used any more."""
        self._ranks.close()

    def together(self, message: bytes, work: Callable[[], Result]) -> Result:
        """Send ``message`` to the other ranks and do ``work``, this rank's share of it."""
        with self._ranks.waiting():
            self._ranks.send(message)
            return work()
