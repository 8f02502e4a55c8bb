"""Keeps what users write from being read as control tokens once a template has placed it.

A noncharacter inside every beginning and end of a spelling breaks it, wherever a template cuts or
joins the texts. Knows nothing of templates or token ids.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any

# Noncharacter: never valid in interchanged text, so user data loses nothing by giving it up.
SHIELD = "\ufdd0"
_EDGES = "<|>[]/"
# How many texts are kept with what was made of them, and of how many characters at most.
KEPT, SHORT = 4096, 128


def unshield(text: str) -> str:
    return text.replace(SHIELD, "")


class Shield:
    """Breaks ``spellings`` of control tokens, in whatever case they are written."""

    def __init__(self, spellings: Iterable[str]) -> None:
        known = sorted(spelling for spelling in spellings if len(spelling) > 1)
        pairs = {pair.lower() for text in known for pair in (text[:2], text[-2:])}
        # A pair may begin inside another one.
        halves = [(re.escape(pair[0]), re.escape(pair[1])) for pair in sorted(pairs)]
        ahead = "|".join(f"{one}(?={other})" for one, other in halves)
        self._pairs = re.compile(ahead or "(?!)", re.IGNORECASE)
        self._first = frozenset(text[0] for text in known)
        self._last = frozenset(text[-1] for text in known)
        self._inside = frozenset(text.strip(_EDGES).lower() for text in known)
        self._kept = functools.lru_cache(maxsize=KEPT)(self._cover_text)

    def cover(self, value: Any) -> Any:
        """A copy of JSON-like ``value`` none of whose strings can become part of a spelling."""
        if isinstance(value, str):
            # The same names and short texts come again and again, with tools above all.
            return self._kept(value) if len(value) <= SHORT else self._cover_text(value)
        if isinstance(value, Mapping):
            return {self.cover(key): self.cover(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.cover(item) for item in value]
        return value

    def _cover_text(self, text: str) -> str:
        text = text.replace(SHIELD, "\ufffd")
        words = text.strip()
        if not words:
            return text
        if words.strip(_EDGES).lower() in self._inside:
            # A template may put the rest around it.
            at = text.index(words) + (len(words) + 1) // 2
            text = text[:at] + SHIELD + text[at:]
        text = self._pairs.sub(lambda found: found[0] + SHIELD, text)
        # Half of a pair at an edge may find its other half in the text that comes next.
        if words[-1] in self._first:
            end = len(text.rstrip())
            text = text[:end] + SHIELD + text[end:]
        if words[0] in self._last:
            start = len(text) - len(text.lstrip())
            text = text[:start] + SHIELD + text[start:]
        return text
