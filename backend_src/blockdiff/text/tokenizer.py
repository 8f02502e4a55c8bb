"""Text to ids and back, for one checkpoint: tokenizer.json, chat template, control tokens.

Control tokens written inside user text stay text: user text is encoded by a second tokenizer that
knows none, and only the template's own pieces may become control tokens.
Knows nothing of requests, streams or Triton Inference Server.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import tokenizers

from blockdiff.errors import ConfigError, RequestError, UnsupportedError
from blockdiff.text.replaced_bytes import replaced_bytes
from blockdiff.text.shield import KEPT, SHORT, Shield, unshield
from blockdiff.text.special import SpecialTokens, find_special_tokens, read_json
from blockdiff.text.template import ChatTemplate
from blockdiff.text.think_marks import THINK_MARKS, detect_think_marks
from blockdiff.text.tool_calls.forms import MARKERS, detect_form

# White space may follow a mark at the end of a prompt.
MAX_MARK_TOKENS = 32
_CONTROL_SHAPE = re.compile(r"<.*>|\[[A-Z_]+\]|<\|.*\|>", re.DOTALL)


class ThinkState(str, Enum):
    """What the end of a prompt says about the think block of the answer."""

    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"


class Tokenizer:
    """Tokenizer and chat template of one checkpoint. Immutable after load; safe to share."""

    def __init__(
        self,
        definition: Mapping[str, Any],
        template: str | None,
        special: SpecialTokens,
        model_type: str | None = None,
    ) -> None:
        definition = _with_visible_markers(definition)
        self._full = tokenizers.Tokenizer.from_str(json.dumps(definition))
        self._control = {
            str(token["content"]): int(token["id"])
            for token in definition.get("added_tokens", ())
            if token.get("special") or _CONTROL_SHAPE.fullmatch(token["content"])
        }
        self._control_texts = {token_id: text for text, token_id in self._control.items()}
        self._hidden_ids = frozenset(
            int(token["id"]) for token in definition.get("added_tokens", ()) if token.get("special")
        )
        self._plain = tokenizers.Tokenizer.from_str(json.dumps(self._without_control(definition)))
        self._control_pattern = _alternatives(self._control)
        self._shield = Shield(self._control)
        self._kept = functools.lru_cache(maxsize=KEPT)(self._spell)
        names = dict(special.names)
        self._template = ChatTemplate(template, names) if template is not None else None
        self._bytes: dict[int, bytes] = {}
        self._decoder = definition.get("decoder") or {}
        self.special = special
        self.think_marks = detect_think_marks(template, lambda token: token in self._control)
        """How the model marks its think blocks; None: nothing tells that it has any."""
        self.is_byte_level = _is_byte_level(definition)
        self.tool_form = detect_form(
            template, lambda token: self.id_of(token) is not None, model_type
        )
        self.vocab_size = self._full.get_vocab_size(with_added_tokens=True)
        vocabulary = self._full.get_vocab(with_added_tokens=True)
        self.largest_id = max(vocabulary.values(), default=-1)
        self._most_bytes = _most_bytes_per_token(definition, vocabulary)

    @classmethod
    def load(cls, model_dir: str | Path) -> "Tokenizer":
        """Reads tokenizer.json, the chat template (optional) and the ids in config.json."""
        folder = Path(model_dir)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"{path}: no such file; the checkpoint needs a tokenizer.json")
        definition = read_json(path)
        try:
            vocabulary = tokenizers.Tokenizer.from_str(json.dumps(definition)).get_vocab()
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"{path}: not a tokenizer ({error}); replace the file") from error
        model_type = read_json(folder / "config.json").get("model_type")
        return cls(
            definition,
            _template_text(folder),
            find_special_tokens(vocabulary, folder),
            model_type if isinstance(model_type, str) else None,
        )

    def require_room(self, name: str, text: str, most_tokens: int | None) -> None:
        """Refuse a text that cannot fit, however it splits: encoding a long one takes seconds."""
        if most_tokens is None or self._most_bytes is None:
            return
        size, limit = len(text.encode()), most_tokens * self._most_bytes
        if size > limit:
            raise RequestError(
                f"{name}: got {size} bytes, allowed up to {limit} bytes "
                f"(no more can fit into {most_tokens} tokens)"
            )

    def id_of(self, token: str) -> int | None:
        """The id of one token by its spelling; None where the vocabulary has no such token."""
        found: int | None = self._full.token_to_id(token)
        return found

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Ids of ``text``; control-token spellings become control tokens only if allowed."""
        if not allow_special:
            return self._encode_plain(text)
        ids: list[int] = self._full.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        text: str = self._full.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes:
        """Bytes that ``token_id`` adds to a text (byte-level vocabularies only)."""
        if skip_special and token_id in self._hidden_ids:
            return b""
        known = self._bytes.get(token_id)
        if known is None:
            known = _piece_bytes(self._full.id_to_token(token_id) or "")
            self._bytes[token_id] = known
        return known

    @property
    def control_ids(self) -> frozenset[int]:
        """Tokens that are no text."""
        return frozenset(self._control_texts)

    def all_bytes(self, count: int) -> list[bytes] | None:
        """What each of the first ``count`` ids adds to a text; None where that is not known."""
        if self.is_byte_level:
            return [self.token_bytes(token_id) for token_id in range(count)]
        pieces = [self._full.id_to_token(token_id) or "" for token_id in range(count)]
        return replaced_bytes(self._decoder, pieces, self._hidden_ids)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        most_tokens: int | None = None,
    ) -> list[int]:
        """Ids of the prompt that asks for the next assistant turn.

        ``enable_thinking`` None leaves the choice to the template. A prompt that cannot fit into
        ``most_tokens`` is refused before it is encoded; the ids may still be more.
        """
        if self._template is None:
            raise UnsupportedError("messages: this model has no chat template; use text_input")
        cover = self._shield.cover
        rendered = self._template.render(cover(messages), cover(tools), enable_thinking)
        self.require_room("messages", unshield(rendered), most_tokens)
        ids: list[int] = []
        for piece in self._control_pattern.split(rendered):
            if piece in self._control:
                ids.append(self._control[piece])
            elif piece:
                ids += self._encode_plain(unshield(piece))
        return ids

    def think_state(self, input_ids: Sequence[int]) -> ThinkState:
        """Whether a prompt ends inside a think block, just after one, or neither."""
        if self.think_marks is None:
            return ThinkState.UNKNOWN
        tail = list(input_ids[-MAX_MARK_TOKENS:])
        text = self.decode(tail, skip_special=False).rstrip()
        for mark, token_id, state in (
            (self.think_marks.start, self.special.think_start, ThinkState.OPEN),
            (self.think_marks.end, self.special.think_end, ThinkState.CLOSED),
        ):
            # What only reads like a mark is none where there is a token for it.
            if text.endswith(mark.rstrip()) and (token_id is None or token_id in tail):
                return state
        return ThinkState.UNKNOWN

    def think_end_ids(self) -> list[int]:
        """What ends a think block of this model; [] where it has none."""
        return [] if self.think_marks is None else self.encode(self.think_marks.end, True)

    def _encode_plain(self, text: str) -> list[int]:
        # What templates put between control tokens is short and comes again and again.
        return list(self._kept(text)) if len(text) <= SHORT else self._spell(text)

    def _spell(self, text: str) -> list[int]:
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if self._control_texts.keys().isdisjoint(ids):
            return ids
        # A vocabulary may hold a control spelling as an ordinary piece: spell that one out.
        spelled: list[int] = []
        for token_id in ids:
            text = self._control_texts.get(token_id, "")
            letters = [self._plain.encode(c, add_special_tokens=False).ids for c in text]
            spelled += [i for part in letters for i in part] if text else [token_id]
        return spelled

    def _without_control(self, definition: Mapping[str, Any]) -> dict[str, Any]:
        kept = [t for t in definition.get("added_tokens", ()) if t["content"] not in self._control]
        return {**definition, "added_tokens": kept, "post_processor": None}


def _alternatives(texts: Mapping[str, int]) -> re.Pattern[str]:
    if not texts:
        return re.compile(r"(?!)")
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("(" + "|".join(re.escape(text) for text in longest_first) + ")")


def _with_visible_markers(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Where a vocabulary counts marks of tool calls and think blocks as special they would be
    missing in texts.
    """
    visible = MARKERS | {mark for marks in THINK_MARKS.values() for mark in marks.control}
    tokens = [
        {**token, "special": bool(token.get("special")) and token["content"] not in visible}
        for token in definition.get("added_tokens", ())
    ]
    return {**definition, "added_tokens": tokens}


def _template_text(folder: Path) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    inline = read_json(folder / "tokenizer_config.json").get("chat_template")
    return inline if isinstance(inline, str) else None


def _most_bytes_per_token(definition: Mapping[str, Any], vocabulary: Iterable[str]) -> int | None:
    """How many bytes of text one token can stand for; None where that is not known."""
    normalizer = (definition.get("normalizer") or {}).get("type")
    if not _is_byte_level(definition) or normalizer not in (None, "NFC"):
        return None
    # In UTF-8 a piece takes no fewer bytes than it stands for. NFC shrinks a text (Hangul) to a
    # third at most.
    longest = max(len(piece.encode()) for piece in vocabulary)
    return longest * (3 if normalizer else 1)


def _is_byte_level(definition: Mapping[str, Any]) -> bool:
    decoder = definition.get("decoder") or {}
    return decoder.get("type") == "ByteLevel"


def _byte_alphabet() -> dict[str, int]:
    """The byte-level BPE alphabet: printable bytes stand for themselves, others are moved up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(moved)})
    return alphabet


_BYTE_OF = _byte_alphabet()


def _piece_bytes(piece: str) -> bytes:
    if all(character in _BYTE_OF for character in piece):
        return bytes(_BYTE_OF[character] for character in piece)
    return piece.encode("utf-8")
