"""The text side of one running request: token ids of blocks in, public deltas out.

Knows tokens, reasoning and tool calls; knows nothing of tensors or of the engine.
"""

import functools
import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from blockdiff.serving.spec import TextContext
from blockdiff.text import (
    FORMS,
    TAGS,
    ParsedText,
    ReasoningSplitter,
    TextStream,
    ThinkState,
    ThinkTokens,
    Tokenizer,
    ToolCall,
    ToolCallParser,
)


class Delta(NamedTuple):
    text: str
    reasoning: str
    calls: list[dict[str, Any]]
    has_malformed_call: bool
    num_reasoning_tokens: int


class AnswerText:
    """Text state of one request; the engine has already decided where it ends."""

    def __init__(self, tokenizer: Tokenizer, uid: int, context: TextContext) -> None:
        self.context = context
        self.has_calls = False
        self._uid = uid
        self._tokenizer = tokenizer
        self._stream = TextStream(
            tokenizer,
            context.stop_words,
            min_tokens=context.min_tokens,
            includes_stop=context.includes_stop,
        )
        think, marks = ThinkState(context.think), tokenizer.think_marks or TAGS
        self._splitter = ReasoningSplitter(think, marks) if context.is_chat else None
        self._counter = ThinkTokens(
            tokenizer, marks.start, marks.end, context.is_chat and think is ThinkState.OPEN
        )
        self._calls = (
            ToolCallParser(FORMS[context.tool_form], context.tools) if context.tool_form else None
        )
        self._num_calls = 0
        self._echo = context.echo

    def push(self, token_ids: Sequence[int], stop_reason: str, final: bool) -> Delta:
        """Deltas of one block; the token that only marks the end is no text."""
        is_ended = final and self._is_ended_by(token_ids, stop_reason)
        counted = token_ids[:-1] if is_ended else token_ids
        num_reasoning = self._counter.push(counted, final) if self.context.is_chat else 0
        found = self._stream.push(token_ids if self.context.includes_stop else counted, final)
        text, reasoning = found.text, ""
        if self._splitter is not None:
            text, reasoning = self._splitter.push(text, final)
        parsed = ParsedText(text, [])
        if self._calls is not None:
            parsed = self._calls.push(text, final)
        text, self._echo = self._echo + parsed.text, ""
        calls = [self._public(call) for call in parsed.calls]
        return Delta(text, reasoning, calls, parsed.has_malformed, num_reasoning)

    def _is_ended_by(self, token_ids: Sequence[int], stop_reason: str) -> bool:
        """Whether the last token is what ended the answer, and not a stop string."""
        if not token_ids or stop_reason != str(token_ids[-1]):
            return False
        # a stop string may be made of the digits of an id
        ends = (*self._tokenizer.special.eos, *self.context.stop_token_ids)
        return stop_reason not in self.context.stop_words or token_ids[-1] in ends

    def top_text(self, found: str) -> str:
        """Most probable tokens by id, as the engine writes them, with their texts."""
        lists = json.loads(found) if found else []
        decode = functools.lru_cache(maxsize=None)(self._decode)
        named = [
            [{"id": token, "token": decode(token), "log_prob": value} for token, value in top]
            for top in lists
        ]
        return json.dumps(named, ensure_ascii=False)

    def _decode(self, token: int) -> str:
        return self._tokenizer.decode([token], skip_special=False)

    def _public(self, call: ToolCall) -> dict[str, Any]:
        index = self._num_calls
        self._num_calls += 1
        self.has_calls = True
        digest = hashlib.sha256(f"{self._uid}:{index}".encode()).hexdigest()
        return {
            "index": index,
            "id": f"call_{digest[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
