"""Text work around the engine: tokens to text, chat templates, reasoning, tool calls."""

from blockdiff.text.reasoning import ReasoningSplitter, SplitText
from blockdiff.text.special import SpecialTokens
from blockdiff.text.stream import TextDelta, TextStream
from blockdiff.text.think_marks import TAGS, THINK_MARKS, ThinkMarks
from blockdiff.text.think_tokens import ThinkTokens
from blockdiff.text.token_texts import TextCodec
from blockdiff.text.tokenizer import ThinkState, Tokenizer
from blockdiff.text.tool_calls import FORMS, ParsedText, ToolCall, ToolCallParser, offered_types

__all__ = [
    "FORMS",
    "ParsedText",
    "ReasoningSplitter",
    "SpecialTokens",
    "SplitText",
    "TextCodec",
    "TextDelta",
    "TextStream",
    "TAGS",
    "THINK_MARKS",
    "ThinkMarks",
    "ThinkState",
    "ThinkTokens",
    "Tokenizer",
    "ToolCall",
    "ToolCallParser",
    "offered_types",
]
