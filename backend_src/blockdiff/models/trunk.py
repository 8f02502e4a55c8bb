"""What all loaded checkpoints share: embedding, output head, and the calls made of them.

Knows nothing of layers, files, requests or sampling.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from blockdiff.cache import LayerCaches
from blockdiff.config import AnyConfig
from blockdiff.models.base import ModelCaches, ModelInfo, RoundBatch
from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.layers.trace import Trace
from blockdiff_kernels.head import best_tokens, logits


class LanguageModel(ABC):
    """A loaded checkpoint; families add their layers."""

    formulation: str
    """How previews mix the tokens of a block."""
    config: AnyConfig

    def __init__(self, info: ModelInfo, embedding: Tensor, output: Tensor) -> None:
        self.info = info
        self.embedding = embedding  # [V, H]
        self.output = output  # [V, H]
        self.device = embedding.device
        self.dtype = embedding.dtype

    @abstractmethod
    def new_caches(self, num_slots: int, max_context: int) -> LayerCaches:
        """Preallocated caches; see ``models.base``."""

    @abstractmethod
    def hidden(self, batch: RoundBatch, caches: ModelCaches, trace: Trace | None = None) -> Tensor:
        """Final normalised hidden rows [L, H] of ``batch.logit_rows``; see ``models.base``."""

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits [L, V] float32."""
        return logits(hidden, self.output)

    @torch.inference_mode()
    def best(self, hidden: Tensor, excluded: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Best ids [L] int64 and confidences [L] float32, without building [L, V] at once."""
        return best_tokens(hidden, self.output, excluded)

    def forward(self, batch: RoundBatch, caches: ModelCaches) -> Tensor:
        """Logits [L, V] float32 of ``batch.logit_rows``."""
        return self.head(self.hidden(batch, caches))


def note_lengths(layout: RoundLayout, caches: LayerCaches) -> None:
    """Set the lengths that hold after this round; ``reset`` relies on them even if it fails."""
    for group in layout.groups:
        if group.is_writing:
            rows = group.width if group.lengths is None else group.lengths
            lengths = group.contexts + rows
            assert int(lengths.max()) <= caches.max_context, "a commit runs past the cache"
            caches.lengths.index_copy_(0, group.slots, lengths)
