"""The same calls on both sides: our model with its caches, and transformers with its own."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.trunk import LanguageModel


class Ours:
    """One sequence in a slot of the caches; slot 0 stays empty."""

    def __init__(self, model: LanguageModel, max_tokens: int) -> None:
        self.model = model
        self.slot = 1
        self.caches: Any = model.new_caches(2, max_tokens)
        self.length = 0

    def commit(self, ids: Sequence[int]) -> Tensor:
        """Logits [T, V] of rows that are written."""
        logits = self._run(Phase.COMMIT, ids)
        self.length += len(ids)
        return logits

    def preview(self, ids: Sequence[int]) -> Tensor:
        """Logits [T, V] of a block that is only looked at."""
        return self._run(Phase.PREVIEW, ids)

    def _run(self, phase: Phase, ids: Sequence[int]) -> Tensor:
        # a grid of blocks, which causal commits must not look at
        segment = Segment(phase, self.slot, self.length, ids, range(len(ids)), block_length=5)
        return self.model.forward(RoundBatch.from_segments([segment]), self.caches)


class Reference:
    """One sequence in a cache of transformers."""

    def __init__(self, model: Any, is_hybrid: bool) -> None:
        self.model = model.eval()
        self.is_hybrid = is_hybrid
        self.cache = DynamicCache(config=model.config)
        self.length = 0

    def commit(self, ids: Sequence[int]) -> Tensor:
        """Logits [T, V] of rows that are written, causally."""
        logits = self._run(ids, self.cache, None)
        self.length += len(ids)
        return logits

    def preview(self, ids: Sequence[int]) -> Tensor:
        """Logits [T, V] of a block whose rows attend to all of it, on a copy of the cache.

        A hybrid model's linear attention layers stay causal: formulation A.
        """
        mask: Any = torch.ones(1, 1, len(ids), self.length + len(ids), dtype=torch.bool)
        if self.is_hybrid:
            mask = {"full_attention": mask, "linear_attention": None}
        return self._run(ids, copy.deepcopy(self.cache), mask)

    @torch.no_grad()
    def _run(self, ids: Sequence[int], cache: DynamicCache, mask: Any) -> Tensor:
        tokens = torch.tensor([list(ids)])
        out = self.model(input_ids=tokens, cache=cache, attention_mask=mask, use_cache=True)
        logits: Tensor = out.logits[0]
        return logits


def assert_close(got: Tensor, want: Tensor) -> None:
    """Equal up to float32 rounding, which norms of small vectors amplify to a few 1e-5."""
    assert got.shape == want.shape
    torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)
