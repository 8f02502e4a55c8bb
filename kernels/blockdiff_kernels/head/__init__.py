"""Output head: l = W h, or with a cap c: l = c tanh(W h / c)

token = argmax l, or argmax (l / T + g) with Gumbel noise g;  log p = l[token] - log sum exp l.

``choose`` is all that a round asks of it; its kernels keep every logit on chip.
"""

from torch import Tensor

from blockdiff_kernels.head import cpu, reference
from blockdiff_kernels.head.rules import (
    MOST_LISTED,
    Choice,
    Controls,
    Entropy,
    Filters,
    Others,
    Peaks,
    RowDraws,
    Rules,
)
from blockdiff_kernels.implementation import TRITON
from blockdiff_kernels.implementation import choose as implementation_of
from blockdiff_kernels.packed import is_packed

__all__ = [
    "Choice",
    "Controls",
    "Entropy",
    "Filters",
    "MOST_LISTED",
    "Others",
    "Peaks",
    "RowDraws",
    "Rules",
    "choose",
    "expect",
    "logits",
]


def logits(hidden: Tensor, weight: Tensor, cap: float | None = None) -> Tensor:
    """Logits [R, V] float32 of hidden [R, H] and weight [V, H]; ``cap`` bounds them softly.

    On a CPU the weight may be packed (``blockdiff_kernels.packed``).
    """
    if is_packed(weight):
        return cpu.logits(hidden, weight, cap)
    return reference.logits(hidden, weight, cap)


def choose(hidden: Tensor, weight: Tensor, cap: float | None, rules: Rules) -> Choice:
    """One token for each row of hidden [L, H] and its log probability, from weight [V, H].

    Bans and filters do not change the probabilities; what is not a number in hidden makes a row's
    log probability nan.
    """
    if implementation_of("head", hidden.device) is TRITON:
        from blockdiff_kernels.head import triton

        return triton.choose(hidden, weight, cap, rules)
    return reference.choose(hidden, weight, cap, rules)


def expect(hidden: Tensor, weight: Tensor, cap: float | None, rules: Rules, peaks: Peaks) -> Tensor:
    """The row of ``weight`` that each row expects, [L, H]: sum_v softmax(l / T)_v W_v.

    Over the tokens that are not banned; ``peaks`` are those that ``choose`` gave for ``rules``.
    """
    if implementation_of("head", hidden.device) is TRITON:
        from blockdiff_kernels.head import expecting

        return expecting.expect(hidden, weight, cap, rules, peaks)
    return reference.expect(hidden, weight, cap, rules)
