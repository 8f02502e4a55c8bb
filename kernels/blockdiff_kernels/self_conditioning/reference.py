"""Plain torch definition of the expected embedding. Knows nothing of layers."""

import torch
from torch import Tensor


def expected_embedding(logits: Tensor, embedding: Tensor, scale: float) -> Tensor:
    """See the package docstring."""
    probabilities = logits.softmax(dim=-1, dtype=torch.float32).to(embedding.dtype)
    return (probabilities @ embedding) * torch.tensor(scale, dtype=embedding.dtype)
