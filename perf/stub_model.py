"""A model whose forward costs nothing: hidden rows and logits are slices of stored tensors.

What it answers means nothing; it exists to measure everything around a forward.
"""

import torch
from torch import Tensor

from blockdiff.models.base import ModelInfo, RoundBatch
from blockdiff.pages import CachePool, CacheRoom, CacheSizes, CacheWork, make_room

VOCABULARY = 16
MASK, EOS = VOCABULARY - 1, VOCABULARY - 2


class StubCaches:
    """Keeps nothing."""

    def __init__(self, room: CacheRoom) -> None:
        self.room = room

    def prepare(self, work: CacheWork) -> None:
        """See ``models.base``."""


class StubModel:
    """A ``BlockDiffusionModel`` for rounds of up to ``max_rows`` decided rows."""

    def __init__(self, block_length: int, max_rows: int) -> None:
        self.info = ModelInfo(
            model_type="stub",
            vocab_size=VOCABULARY,
            block_length=block_length,
            mask_token_id=MASK,
            eos_token_ids=(EOS,),
            max_context=1 << 16,
        )
        self.device = torch.device("cpu")
        self.output_head = None
        generator = torch.Generator().manual_seed(0)
        self._logits = torch.randn(max_rows, VOCABULARY, generator=generator)
        self._hidden = torch.zeros(max_rows, 1)

    def new_caches(
        self, num_slots: int, max_context: int, pool: CachePool | None = None
    ) -> StubCaches:
        """See ``models.base``."""
        return StubCaches(make_room(num_slots, max_context, self.info.block_length, pool))

    def cache_sizes(self, page_length: int, max_context: int | None = None) -> CacheSizes:
        """See ``models.base``."""
        return CacheSizes(page_bytes=1, state_bytes=0)

    def hidden(self, batch: RoundBatch, caches: object, *, hits: object = None) -> Tensor:
        """See ``models.base``."""
        return self._hidden[: batch.logit_rows.shape[0]]

    def head(self, hidden: Tensor) -> Tensor:
        """See ``models.base``; the engine may write to what it gets."""
        return self._logits[: hidden.shape[0]]

    def forward(self, batch: RoundBatch, caches: object) -> Tensor:
        """See ``models.base``."""
        return self.head(self.hidden(batch, caches))

    def check(self) -> None:
        """See ``models.base``."""
