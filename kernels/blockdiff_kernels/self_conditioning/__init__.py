"""The embedding that a row of logits expects: e = scale * sum_v softmax(l)_v E_v."""

from torch import Tensor

from blockdiff_kernels.self_conditioning import reference


def expected_embedding(logits: Tensor, embedding: Tensor, scale: float) -> Tensor:
    """[R, H] in ``embedding.dtype`` of logits [R, V] and embedding [V, H]; softmax in float32."""
    return reference.expected_embedding(logits, embedding, scale)
