"""What a request says that its answer must and must not be.

Knows checked values; knows nothing of tensors or of how guides are enforced.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from blockdiff.constraints.bad_strings import check_bad_strings
from blockdiff.constraints.trial import check_guide
from blockdiff.core import Guide, GuideKind, Thinking
from blockdiff.text import ThinkState


class Limits(NamedTuple):
    """What an answer must and must not be."""

    guide: Guide | None
    bad_words: tuple[str, ...]
    thinking: Thinking | None


def read_guide(given: Mapping[str, Any], think: ThinkState) -> Guide | None:
    """The guide that the request itself gives, unchecked.

    ``think``: what the prompt of a chat says of thinking.
    """
    kind = given.get("guided_decoding_guide_type")
    if not kind:
        return None
    is_off = not given.get("messages") or given.get("enable_thinking") is False
    if is_off and think is ThinkState.UNKNOWN:
        think = ThinkState.CLOSED
    return Guide(GuideKind(kind), given.get("guided_decoding_guide", ""), think.value)


def check_limits(limits: Limits) -> None:
    """Raise RequestError where they cannot be honoured whatever the model is."""
    check_bad_strings(limits.bad_words, "bad_words")
    if limits.guide is not None:
        check_guide(limits.guide)
