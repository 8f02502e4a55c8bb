"""Checks of a budget for thinking (``Request.thinking``) against a request and its model.

Knows nothing of blocks, slots or text.
"""

from blockdiff.core import Mode, Request
from blockdiff.engine.ranges import check_integer
from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.model_info import ModelInfo

MAX_BUDGET = 2**31 - 1


def check_thinking(request: Request, info: ModelInfo, has_tokenizer: bool) -> None:
    """Raise RequestError for a budget that cannot be kept."""
    thinking = request.thinking
    if thinking is None:
        return
    check_integer("thinking_budget", thinking.budget, 0, MAX_BUDGET)
    if not has_tokenizer:
        raise UnsupportedError("thinking_budget: this model has no tokenizer; leave it out")
    if request.decoding.mode is Mode.AUTOREGRESSIVE:
        raise UnsupportedError("thinking_budget: not possible in autoregressive mode; leave it out")
    if request.decoding.editing_threshold is not None and info.edits_length:
        raise UnsupportedError(
            "thinking_budget: cannot be combined with editing_threshold, because "
            f"{info.model_type} moves tokens when it inserts and deletes; leave one of them out"
        )
    if request.pinned:
        raise RequestError("thinking_budget: cannot be combined with pinned; leave one of them out")
    if not thinking.end_ids or not thinking.start or not thinking.end:
        raise RequestError("thinking: start, end and end_ids must not be empty")
    for token in thinking.end_ids:
        check_integer("thinking: end_ids", token, 0, info.vocab_size - 1)
        if token in info.control_token_ids:
            raise RequestError(f"thinking: end_ids: {token} is a token that is never output")
