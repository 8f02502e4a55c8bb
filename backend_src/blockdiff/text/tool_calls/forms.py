"""The table of forms, and which of them a checkpoint's model writes.

Knows the signs by which a chat template, a vocabulary and a model type give a form away.
"""

from collections.abc import Callable
from typing import NamedTuple

from blockdiff.text.tool_calls.call import ToolForm
from blockdiff.text.tool_calls.gemma import QUOTE, Gemma
from blockdiff.text.tool_calls.hermes import Hermes
from blockdiff.text.tool_calls.llada2 import Llada2
from blockdiff.text.tool_calls.qwen_xml import QwenXml

FORMS: dict[str, ToolForm] = {form.name: form for form in (Hermes(), QwenXml(), Llada2(), Gemma())}
MARKERS = frozenset(
    {mark for form in FORMS.values() for mark in (form.start, form.end)}
    | {QUOTE, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}
)
"""Spellings that calls are made of: text for a parser even where a vocabulary calls them special"""

# First found wins: the markers of the JSON form are part of other forms too.
_TEMPLATE_SIGNS = (("<|tool_call>", "gemma"), ("<function=", "qwen_xml"), ("<arg_key>", "llada2"))
_BY_MODEL_TYPE = {
    "diffusion_gemma": "gemma",
    "llada2_moe": "llada2",
    "qwen3_5_moe": "qwen_xml",
}


class DetectedForm(NamedTuple):
    form: ToolForm
    reason: str
    """What gave it away, as a phrase."""


def detect_form(
    template: str | None, has_token: Callable[[str], bool], model_type: str | None
) -> DetectedForm:
    """The form of a checkpoint by its template, else its vocabulary, else its model type."""
    for sign, name in _TEMPLATE_SIGNS:
        if sign in (template or ""):
            return DetectedForm(FORMS[name], f"the chat template has {sign}")
    if has_token("<|tool_call>"):
        return DetectedForm(FORMS["gemma"], "the vocabulary has <|tool_call>")
    if "<tool_call>" in (template or ""):
        # Ling's template shows the JSON form, its successors' models write another one.
        name = "llada2" if model_type == "llada2_moe" else "hermes"
        return DetectedForm(FORMS[name], "the chat template has <tool_call>")
    if model_type in _BY_MODEL_TYPE:
        return DetectedForm(FORMS[_BY_MODEL_TYPE[model_type]], f"model type {model_type}")
    return DetectedForm(FORMS["hermes"], "nothing names another")
