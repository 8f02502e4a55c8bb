"""The guide of a request: what it gives itself, or what its choice of tools asks for.

Knows checked values and the tokenizer; knows nothing of tensors or of how guides are enforced.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from blockdiff.constraints.bad_strings import check_bad_strings
from blockdiff.constraints.trial import check_guide
from blockdiff.core import Guide, GuideKind
from blockdiff.serving.tool_choice import ToolChoice
from blockdiff.text import Tokenizer
from blockdiff.text.tool_guides import tool_guide


class Limits(NamedTuple):
    """What an answer must and must not be."""

    guide: Guide | None
    bad_words: tuple[str, ...]


def read_guide(
    given: Mapping[str, Any], choice: ToolChoice, form: str, tokenizer: Tokenizer, think: str
) -> Guide | None:
    """The guide, unchecked. ``think``: what the prompt of a chat says of thinking."""
    is_off = not given.get("messages") or given.get("enable_thinking") is False
    begins = "closed" if is_off and think == "unknown" else think
    if choice.is_required:
        made = tool_guide(choice.tools, choice.named, form, tokenizer.control_id)
        return Guide(made.kind, made.text, begins)
    kind = given.get("guided_decoding_guide_type")
    if not kind:
        return None
    return Guide(GuideKind(kind), given.get("guided_decoding_guide", ""), begins)


def check_limits(limits: Limits) -> None:
    """Raise RequestError where they cannot be honoured whatever the model is."""
    check_bad_strings(limits.bad_words, "bad_words")
    if limits.guide is not None:
        check_guide(limits.guide)
