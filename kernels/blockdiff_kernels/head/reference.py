"""Plain torch definitions of the output head. Knows nothing of blocks or requests."""

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.head.drawing import LEAST_TEMPERATURE, draw
from blockdiff_kernels.head.rules import Choice, Controls, Entropy, Others, Peaks, RowDraws, Rules

_NEVER = float("-inf")


def logits(hidden: Tensor, weight: Tensor, cap: float | None = None) -> Tensor:
    """See the package docstring."""
    scores = functional.linear(hidden, weight)
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores if cap is None else scores.div_(cap).tanh_().mul_(cap)


def choose(hidden: Tensor, weight: Tensor, cap: float | None, rules: Rules) -> Choice:
    """See the package docstring; rows that do not count choose as the others do."""
    scores = logits(hidden, weight, cap)
    log_probs = torch.log_softmax(scores, dim=1)
    entropy = _entropy(scores) if rules.entropy is Entropy.PLAIN else None
    unbanned = _without(scores, rules.banned)
    best = unbanned.argmax(dim=1)
    tokens = best if rules.draws is None else _drawn(unbanned, best, rules.draws)
    peaks = None
    if rules.entropy is Entropy.SCALED:
        entropy, peaks = _entropy(_scaled(unbanned, rules)), _peaks(unbanned, rules)
    others = None
    if rules.controls is not None:
        others = _others(log_probs, unbanned, tokens, rules.controls)
    probable = (tokens, _at(log_probs, tokens), best, _at(log_probs, best))
    return Choice(*probable, entropy, others, peaks)


def expect(hidden: Tensor, weight: Tensor, cap: float | None, rules: Rules) -> Tensor:
    """See the package docstring."""
    scores = _scaled(_without(logits(hidden, weight, cap), rules.banned), rules)
    return (torch.softmax(scores, dim=1).to(weight.dtype)) @ weight


def _scaled(scores: Tensor, rules: Rules) -> Tensor:
    assert rules.draws is not None, "there is no temperature"
    return scores / rules.draws.temperature.clamp_min(LEAST_TEMPERATURE)[:, None]


def _peaks(scores: Tensor, rules: Rules) -> Peaks:
    best = scores.amax(dim=1)
    return Peaks(best, _scaled(scores - best[:, None], rules).exp().sum(dim=1))


def _without(scores: Tensor, banned: Tensor) -> Tensor:
    # a last column takes what bans nothing
    wide = functional.pad(scores, (0, 1))
    ids = torch.where(banned >= 0, banned.long(), scores.shape[1])
    return wide.scatter_(1, ids, _NEVER)[:, :-1]


def _drawn(scores: Tensor, best: Tensor, draws: RowDraws) -> Tensor:
    filters = None if draws.filters is None else draws.filters[:2]
    found = draw(scores, draws.temperature, draws.keys, filters)
    return torch.where(draws.temperature > 0, found, best)


def _entropy(scores: Tensor) -> Tensor:
    return torch.special.entr(torch.softmax(scores, dim=1)).sum(dim=1)


def _at(log_probs: Tensor, tokens: Tensor) -> Tensor:
    return log_probs.gather(1, tokens[:, None])[:, 0]


def _others(log_probs: Tensor, scores: Tensor, tokens: Tensor, controls: Controls) -> Others:
    mask, own = log_probs[:, controls.mask], _at(log_probs, tokens)
    is_mask = (mask > own) | ((mask == own) & (controls.mask < tokens))
    scores = scores.clone()
    scores[:, [controls.delete, controls.split]] = _NEVER
    final = scores.argmax(dim=1)
    return Others(
        tokens=torch.where(is_mask, controls.mask, tokens),
        log_probs=torch.where(is_mask, mask, own),
        final_tokens=final,
        final_log_probs=_at(log_probs, final),
    )
