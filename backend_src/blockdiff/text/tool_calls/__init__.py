"""Tool calls in generated text: one incremental parser, one reader for each form of writing them.

Knows text and JSON schema types; knows nothing of tokens, reasoning or requests.
"""

from blockdiff.text.tool_calls.call import Offered, ToolCall, ToolForm
from blockdiff.text.tool_calls.forms import FORMS, MARKERS, DetectedForm, detect_form
from blockdiff.text.tool_calls.parser import ParsedText, ToolCallParser
from blockdiff.text.tool_calls.typed_values import offered_types

__all__ = [
    "FORMS",
    "MARKERS",
    "DetectedForm",
    "Offered",
    "ParsedText",
    "ToolCall",
    "ToolCallParser",
    "ToolForm",
    "detect_form",
    "offered_types",
]
