"""Tokens of all decided rows of a round by kernels that never write logits.

Knows nothing of what is accepted.
"""

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
from torch import Tensor

from blockdiff.decoding import levenshtein
from blockdiff.engine.row_rules import RowRules
from blockdiff.models.base import OutputHead
from blockdiff.transfer import to_device
from blockdiff_kernels.head import MOST_LISTED, Controls, Entropy, Filters, RowDraws, Rules, choose
from blockdiff_kernels.implementation import TRITON
from blockdiff_kernels.implementation import choose as implementation_of


def usable_head(head: OutputHead | None, hidden: Tensor) -> OutputHead | None:
    """``head`` if kernels shall choose from it."""
    return head if implementation_of("head", hidden.device) is TRITON else None


def is_possible(rules: RowRules, has_controls: bool) -> bool:
    """Whether kernels can choose by ``rules``."""
    if rules.needs_logits:
        return False
    if rules.draws is None or not rules.has_filters:
        return True
    top_k, top_p = rules.draws["top_k"], rules.draws["top_p"]
    return not (has_controls or ((top_k > MOST_LISTED) & (top_p < 1)).any())


def has_others(draws: Mapping[str, npt.NDArray[Any]]) -> bool:
    """Whether a drawn row's best tokens are too many to be looked up."""
    top_k, top_p = draws["top_k"], draws["top_p"]
    return bool(((top_k > MOST_LISTED) | ((top_k <= 0) & (top_p < 1))).any())


def _filters(draws: Mapping[str, npt.NDArray[Any]], moved: Mapping[str, Tensor]) -> Filters:
    """Filters of all rows, which lie in ``moved``, and what is known of those of ``draws``."""
    top_k = draws["top_k"]
    most_listed = int(top_k[top_k <= MOST_LISTED].max(initial=0))
    return Filters(moved["top_k"], moved["top_p"], most_listed, has_others(draws))


def choose_at_once(
    head: OutputHead,
    hidden: Tensor,
    rules: RowRules,
    has_entropy: bool,
    controls: levenshtein.Controls | None,
) -> list[Tensor]:
    """The lines of ``forward``: ids, log probabilities, entropies and alternatives, where asked."""
    arrays = rules.whole(len(hidden))
    if rules.has_filters:
        arrays |= rules.filters(len(hidden))
    moved = to_device(arrays, hidden.device)
    draws = None
    if rules.draws is not None:
        filters = _filters(rules.draws, moved) if rules.has_filters else None
        draws = RowDraws(moved["temperature"], moved["keys"], filters)
    found = choose(
        hidden,
        *head,
        Rules(
            banned=moved["banned"],
            draws=draws,
            entropy=Entropy.PLAIN if has_entropy else Entropy.NONE,
            controls=None if controls is None else Controls(*controls),
        ),
    )
    lines = [found.tokens, found.log_probs]
    if found.entropy is not None:
        lines.append(found.entropy)
    return lines if found.others is None else [*lines, *found.others]
