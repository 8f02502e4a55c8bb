"""Makes the constraint of a request, and says which requests can have none.

Knows a model's tokenizer; knows nothing of slots or rounds.
"""

import threading
from collections import OrderedDict
from functools import cached_property
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from blockdiff.constraints.bad_strings import BadStrings, check_bad_strings
from blockdiff.constraints.base import All, Constraint
from blockdiff.constraints.grammars import FIELD
from blockdiff.constraints.guided import GuideConstraint, build_matcher, make_tokenizer
from blockdiff.constraints.thinking import AfterThinking, ThinkTokens
from blockdiff.constraints.trial import check_guide
from blockdiff.constraints.vocabulary import Vocabulary
from blockdiff.core import Guide, GuideKind, Request
from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.text import TextCodec

_KEPT_GUIDES = 64


class ConstraintMaker:
    """Constraints of one model's requests. Any thread may ask."""

    def __init__(self, tokenizer: TextCodec | None, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._lock = threading.RLock()
        self._matchers: OrderedDict[Guide, LLMatcher] = OrderedDict()

    @cached_property
    def _vocabulary(self) -> Vocabulary | None:
        tokenizer: Any = self._tokenizer
        if not hasattr(tokenizer, "all_bytes"):
            return None
        tokens = tokenizer.all_bytes(self._vocab_size)
        return None if tokens is None else Vocabulary(tokenizer, tokens)

    @cached_property
    def _guide_tokenizer(self) -> LLTokenizer:
        assert self._vocabulary is not None, "checked before"
        return make_tokenizer(self._vocabulary)

    @cached_property
    def _think_tokens(self) -> ThinkTokens | None:
        vocabulary = self._vocabulary
        special = getattr(self._tokenizer, "special", None)
        start, end = getattr(special, "think_start", None), getattr(special, "think_end", None)
        if vocabulary is None or start is None or end is None:
            return None
        ends = {i for i, text in enumerate(vocabulary.tokens) if text and not text.strip(b"\n")}
        line_ends = frozenset(ends - vocabulary.control_ids)
        masks = (vocabulary.bits(line_ends), vocabulary.bits([start]), vocabulary.all_bits)
        return ThinkTokens(start, end, line_ends, *masks)

    def check(self, request: Request) -> None:
        """Raise RequestError where the constraint of ``request`` cannot be honoured."""
        self.make(request)

    def make(self, request: Request) -> Constraint | None:
        """The constraint of ``request``, None: it has none; raises RequestError."""
        if request.guide is None and not request.bad_strings:
            return None
        field = FIELD if request.guide is not None else "bad_strings"
        if request.bad_strings:
            check_bad_strings(request.bad_strings)
        with self._lock:
            vocabulary = self._vocabulary
        if vocabulary is None:
            raise UnsupportedError(
                f"{field}: the bytes of this model's tokens are not known; leave it out"
            )
        parts: list[Constraint] = []
        if request.bad_strings:
            parts.append(BadStrings(vocabulary, request.bad_strings))
        if request.guide is not None:
            parts.append(self._guided(request.guide, vocabulary))
        return parts[0] if len(parts) == 1 else All(parts)

    def _matcher(self, guide: Guide) -> LLMatcher:
        with self._lock:
            found = self._matchers.get(guide)
            if found is not None:
                self._matchers.move_to_end(guide)
                return found
        # Others need not wait while this one is tried.
        grammar = check_guide(guide)
        with self._lock:
            tokenizer = self._guide_tokenizer
        found = build_matcher(tokenizer, grammar)
        with self._lock:
            self._matchers[guide] = found
            if len(self._matchers) > _KEPT_GUIDES:
                self._matchers.popitem(last=False)
        return found

    def _guided(self, guide: Guide, vocabulary: Vocabulary) -> Constraint:
        matcher = self._matcher(guide)
        allows_control = guide.kind is GuideKind.TOOL_CALLS
        inner = GuideConstraint(vocabulary, matcher.deep_copy(), allows_control)
        if guide.think == "closed":
            return inner
        if self._think_tokens is None:
            if guide.think == "open":
                raise RequestError(
                    f"{FIELD}: the prompt ends inside thinking, of which this model has no tokens"
                )
            return inner
        return AfterThinking(inner, self._think_tokens, guide.think == "open")
