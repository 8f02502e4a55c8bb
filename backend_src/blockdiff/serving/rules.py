"""Fields that leave no room for each other, whatever the model: one table for every request.

What a model or its algorithms make of a field is the engine's to say. Knows checked values by name;
knows nothing of where they come from.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from blockdiff.errors import RequestError
from blockdiff.serving.json_text import refuse

Given = Mapping[str, Any]


class Rule(NamedTuple):
    """A refusal of ``field``: where it ``is_broken``, what is ``allowed``."""

    field: str
    allowed: str
    is_broken: Callable[[Given], bool]


def _asks(name: str) -> Callable[[Given], bool]:
    """Whether the field was given with anything in it."""
    return lambda given: given.get(name) not in (None, "", False, [])


def _lacks(name: str, other: str) -> Callable[[Given], bool]:
    return lambda given: _asks(name)(given) and not _asks(other)(given)


def _is_beside(name: str, *others: str) -> Callable[[Given], bool]:
    return lambda given: name in given and any(other in given for other in others)


RULES: tuple[Rule, ...] = (
    Rule(
        "messages",
        "no text_input beside it",
        lambda g: _asks("text_input")(g) and _asks("messages")(g),
    ),
    Rule("tools", "nothing with text_input; only with messages", _lacks("tools", "messages")),
    Rule(
        "tool_choice",
        "none with text_input",
        lambda given: (
            given.get("tool_choice", "none").strip() not in ("", "none")
            and not _asks("messages")(given)
        ),
    ),
    Rule(
        "enable_thinking",
        "nothing with text_input; only with messages",
        lambda given: given.get("enable_thinking") is not None and not _asks("messages")(given),
    ),
    Rule(
        "thinking_budget",
        "nothing with text_input; only with messages",
        lambda given: given.get("thinking_budget", -1) >= 0 and not _asks("messages")(given),
    ),
    Rule(
        "thinking_budget",
        "0 or nothing together with enable_thinking false",
        lambda given: (
            given.get("thinking_budget", -1) > 0 and given.get("enable_thinking") is False
        ),
    ),
    Rule(
        "thinking_budget",
        "nothing together with pinned, suffix and gap",
        lambda given: (
            given.get("thinking_budget", -1) >= 0
            and (_asks("pinned")(given) or _asks("suffix")(given))
        ),
    ),
    Rule(
        "exclude_input_in_output",
        "true with messages",
        lambda given: given.get("exclude_input_in_output") is False and _asks("messages")(given),
    ),
    Rule(
        "quality",
        "nothing together with threshold or denoise_steps",
        _is_beside("quality", "threshold", "denoise_steps"),
    ),
    Rule(
        "stop_ramp",
        "nothing together with ignore_eos",
        lambda given: _asks("stop_ramp")(given) and _asks("ignore_eos")(given),
    ),
    Rule("suffix", "nothing without gap", _lacks("suffix", "gap")),
    Rule("gap", "nothing without suffix", _lacks("gap", "suffix")),
    Rule(
        "guided_decoding_guide",
        "nothing without guided_decoding_guide_type",
        _lacks("guided_decoding_guide", "guided_decoding_guide_type"),
    ),
    Rule(
        "guided_decoding_guide_type",
        "json, or a guided_decoding_guide beside it",
        lambda given: (
            given.get("guided_decoding_guide_type", "json") != "json"
            and not _asks("guided_decoding_guide")(given)
        ),
    ),
    Rule("stream_denoise", "false without stream", _lacks("stream_denoise", "stream")),
)

# What goes together although it may look as if it did not: field, what holds.
PRECEDENCE: tuple[tuple[str, str], ...] = (
    (
        "temperature",
        "0 takes the best token, which `top_k`, `top_p` and `min_p` always leave",
    ),
    ("seed", "without a temperature it decides nothing but the canvases of `entropy_bound`"),
    (
        "threshold",
        "with `denoise_steps`: a step accepts its share, and all that is above `threshold`",
    ),
    ("enable_thinking", "false also closes at once what a template or model opens all the same"),
    ("ignore_eos", "`stop_token_ids` end the answer all the same"),
    ("min_tokens", "before it neither an end token nor a stop string ends the answer"),
    ("max_tokens", "ends the answer wherever it is, also inside a think block or a tool call"),
)


def check_rules(given: Given) -> None:
    """Raise RequestError for the first rule that the checked values break."""
    if not _asks("text_input")(given) and not _asks("messages")(given):
        empty = [name for name in ("text_input", "messages") if name in given]
        if "text_input" not in given:
            name = empty[0] if empty else "text_input"
            raise RequestError(f"{name}: got nothing, allowed one of text_input and messages")
    for rule in RULES:
        if rule.is_broken(given):
            raise refuse(rule.field, given[rule.field], rule.allowed)
