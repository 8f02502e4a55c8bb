"""Plain torch definition of the expected embedding. Knows nothing of layers."""

import torch
from torch import Tensor


def expected_embedding(logits: Tensor, embedding: Tensor, scale: float, first: int = 0) -> Tensor:
    """See the package docstring."""
    probabilities = logits.softmax(dim=-1, dtype=torch.float32).to(embedding.dtype)
    here = probabilities[:, first : first + embedding.shape[0]]
    return (here @ embedding) * torch.tensor(scale, dtype=embedding.dtype)
