"""Token embeddings of the hybrid model and of DiffusionGemma, which scales them."""

import torch
from torch import Tensor

from blockdiff_kernels.embedding.triton import embedding
from tests.aot.case import Case


def _embed(vocabulary: int, width: int, scale: float | None, first: int | None) -> Tensor:
    ids = torch.empty(512, dtype=torch.int64, device="meta")
    table = torch.empty(vocabulary, width, dtype=torch.bfloat16, device="meta")
    return embedding(ids, table, scale, first)


CASES = [
    Case("embedding/35b", lambda: _embed(248320, 2048, None, None)),
    Case("embedding/gemma-part", lambda: _embed(131072, 2816, 53.0, 131072)),
]
