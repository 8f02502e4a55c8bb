"""Output head: l = W h, or with a cap c: l = c tanh(W h / c)

token = argmax l;  confidence = softmax(l)[token] = 1 / sum exp(l - l*).

``best_tokens`` walks the vocabulary in tiles with a running maximum and sum, so that no
[rows, vocabulary] float32 matrix is ever built.
"""

from collections.abc import Sequence

from torch import Tensor

from blockdiff_kernels.head import cpu, reference
from blockdiff_kernels.packed import is_packed


def logits(hidden: Tensor, weight: Tensor, cap: float | None = None) -> Tensor:
    """Logits [R, V] float32 of hidden [R, H] and weight [V, H]; ``cap`` bounds them softly.

    On a CPU the weight may be packed (``blockdiff_kernels.packed``).
    """
    if is_packed(weight):
        return cpu.logits(hidden, weight, cap)
    return reference.logits(hidden, weight, cap)


def best_tokens(
    hidden: Tensor,
    weight: Tensor,
    excluded: Sequence[int] = (),
    tile: int = 8192,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Best token ids [R] int64 (lowest id on ties) and confidences [R] float32.

    hidden [R, H], weight [V, H]; ``excluded`` ids count as probability zero; ``tile`` is the number
    of vocabulary rows scored at once, which are all where the weight is packed.
    """
    if is_packed(weight):
        return cpu.best_tokens(hidden, weight, excluded, cap)
    return reference.best_tokens(hidden, weight, excluded, tile, cap)
