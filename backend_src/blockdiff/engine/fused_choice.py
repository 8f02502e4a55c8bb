"""Tokens of all decided rows of a round by kernels that never write logits.

Knows nothing of what is accepted.
"""

from torch import Tensor

from blockdiff.decoding import levenshtein
from blockdiff.engine.row_rules import RowRules
from blockdiff.models.base import OutputHead
from blockdiff.transfer import to_device
from blockdiff_kernels.head import MOST_BOTH, Controls, Entropy, Filters, RowDraws, Rules, choose
from blockdiff_kernels.implementation import TRITON
from blockdiff_kernels.implementation import choose as implementation_of


def usable_head(head: OutputHead | None, hidden: Tensor) -> OutputHead | None:
    """``head`` if kernels shall choose from it."""
    return head if implementation_of("head", hidden.device) is TRITON else None


def is_possible(rules: RowRules, has_controls: bool) -> bool:
    """Whether kernels can choose by ``rules``."""
    return not (has_controls and rules.has_filters) and rules.most_both <= MOST_BOTH


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
    draws = filters = None
    if rules.has_filters:
        kinds = (rules.most_both, rules.has_single_filter)
        filters = Filters(moved["top_k"], moved["top_p"], *kinds)
    if rules.draws is not None:
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
