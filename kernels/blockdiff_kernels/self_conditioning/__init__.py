"""The embedding that a row of logits expects: e = scale * sum_v softmax(l)_v E_v."""

from torch import Tensor

from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.self_conditioning import reference


def expected_embedding(logits: Tensor, embedding: Tensor, scale: float, first: int = 0) -> Tensor:
    """[R, H] in ``embedding.dtype`` of logits [R, V] and embedding [V, H]; softmax in float32.

    ``embedding`` may be the rows of the vocabulary from ``first`` on; the result is their summand.
    """
    if choose("self_conditioning", embedding.device) is TRITON:
        from blockdiff_kernels.self_conditioning import triton

        return triton.expected_embedding(logits, embedding, scale, first)
    return reference.expected_embedding(logits, embedding, scale, first)
