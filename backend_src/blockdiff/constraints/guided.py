"""A guide as a constraint, by llguidance.

Knows the bytes of tokens; knows nothing of slots or rounds.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from blockdiff.constraints.base import Bits
from blockdiff.constraints.grammars import parser_limits, refusal
from blockdiff.constraints.trial import BUILD_STACK_BYTES
from blockdiff.constraints.vocabulary import Vocabulary

# Processor time that one step of a guide may take, so that others need not wait for it.
MAX_STEP_SECONDS = 1.0
_STACK_LOCK = threading.Lock()


class _Wrapper:
    """A vocabulary as llguidance wants it, with one more token that stands for any end."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer
        self.eos_token_id = vocabulary.size
        names = {token: f"<control {token}>".encode() for token in vocabulary.control_ids}
        tokens = [names.get(i, token) for i, token in enumerate(vocabulary.tokens)]
        self.tokens = [*tokens, b"<end>"]
        self.special_token_ids = [*sorted(vocabulary.control_ids), self.eos_token_id]

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokens of a text."""
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode())


def make_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """The vocabulary in llguidance's form; takes about a second for a large one."""
    wrapped: Any = _Wrapper(vocabulary)
    return LLTokenizer(wrapped)


def build_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the beginning of an output, for a grammar that has been tried.

    Raises RequestError.
    """
    found: list[LLMatcher] = []

    def build() -> None:
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=parser_limits())
        if not matcher.is_error():
            # what takes longest is often the first step
            matcher.compute_bitmask()
        found.append(matcher)

    with _STACK_LOCK:
        usual = threading.stack_size(BUILD_STACK_BYTES)
        try:
            thread = threading.Thread(target=build)
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    if found[0].is_error():
        raise refusal(str(found[0].get_error()))
    return found[0]


class GuideConstraint:
    """The output is what a grammar says."""

    def __init__(self, vocabulary: Vocabulary, matcher: LLMatcher, allows_control: bool) -> None:
        """``matcher``: at the beginning. ``allows_control``: the grammar may name control tokens;
        otherwise none can satisfy it, whatever it says."""
        self._vocabulary = vocabulary
        self._matcher = matcher
        self._barred = frozenset() if allows_control else vocabulary.control_ids

    def check(self, token_ids: Sequence[int]) -> int:
        """See ``Constraint``."""
        began = time.thread_time()
        count = self._matcher.validate_tokens(self._text(token_ids))
        self._check_cost(began)
        return int(count)

    def push(self, token_ids: Sequence[int]) -> int:
        """See ``Constraint``."""
        began = time.thread_time()
        count = self._matcher.try_consume_tokens(self._text(token_ids))
        self._check_cost(began)
        return int(count)

    def _text(self, token_ids: Sequence[int]) -> list[int]:
        """``token_ids`` up to the first that can never be allowed."""
        size, barred = self._vocabulary.size, self._barred
        bad = (i for i, token in enumerate(token_ids) if token >= size or token in barred)
        return list(token_ids[: next(bad, len(token_ids))])

    def allowed(self) -> Bits:
        """See ``Constraint``."""
        began = time.thread_time()
        raw = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        self._check_cost(began)
        found = raw[: self._vocabulary.words].copy()
        if self._barred:
            found &= ~self._vocabulary.control_bits
        end = self._vocabulary.size
        if end // 32 < len(found):
            found[end // 32] &= ~np.uint32(1 << end % 32)
        return found

    def _check_cost(self, began: float) -> None:
        # a matcher that stops because it is complete is in no error
        if self._matcher.is_error():
            raise refusal(str(self._matcher.get_error()))
        if time.thread_time() - began > MAX_STEP_SECONDS:
            raise refusal("one step of it takes too long; give a simpler one")

    def forced(self) -> list[int]:
        """See ``Constraint``."""
        tokens: list[int] = self._matcher.compute_ff_tokens()
        return self._text(tokens)

    @property
    def is_complete(self) -> bool:
        """See ``Constraint``."""
        return bool(self._matcher.is_accepting())

    @property
    def must_end(self) -> bool:
        """See ``Constraint``."""
        return bool(self._matcher.is_stopped()) and self.is_complete
