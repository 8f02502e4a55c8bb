"""Text work around the engine: tokens to text, chat templates, reasoning, tool calls."""

from blockdiff.text.special import SpecialTokens
from blockdiff.text.stream import TextCodec, TextDelta, TextStream
from blockdiff.text.tokenizer import ThinkState, Tokenizer

__all__ = ["SpecialTokens", "TextCodec", "TextDelta", "TextStream", "ThinkState", "Tokenizer"]
