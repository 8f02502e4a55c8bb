"""A model whose forward costs nothing: hidden rows and logits are slices of stored tensors.

What it answers means nothing; it exists to measure everything around a forward.
"""

import torch
from torch import Tensor

from blockdiff.models.base import ModelInfo, RoundBatch

VOCABULARY = 16
MASK, EOS = VOCABULARY - 1, VOCABULARY - 2


class StubCaches:
    """Keeps nothing."""

    def __init__(self, num_slots: int, max_context: int) -> None:
        self.num_slots = num_slots
        self.max_context = max_context
        self.lengths = torch.zeros(num_slots, dtype=torch.int64)

    def reset(self, slots: Tensor) -> None:
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
        generator = torch.Generator().manual_seed(0)
        self._logits = torch.randn(max_rows, VOCABULARY, generator=generator)
        self._hidden = torch.zeros(max_rows, 1)

    def new_caches(self, num_slots: int, max_context: int) -> StubCaches:
        """See ``models.base``."""
        return StubCaches(num_slots, max_context)

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
