"""The control tokens of a checkpoint's tokenizer and their ids, found by their usual spellings.

Knows nothing of encoding or templates.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blockdiff.errors import ConfigError

_SPELLINGS: dict[str, tuple[str, ...]] = {
    "mask": ("<|mask|>", "<|MASK|>", "<mask>", "[MASK]"),
    "im_start": ("<|im_start|>", "<role>"),
    "im_end": ("<|im_end|>", "<|role_end|>"),
    "think_start": ("<think>", "<|channel>"),
    "think_end": ("</think>", "<channel|>"),
    "tool_call_start": ("<tool_call>",),
    "tool_call_end": ("</tool_call>",),
}
_DEFAULT_EOS = ("<|im_end|>", "<|endoftext|>", "<|role_end|>", "<eos>", "</s>")


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of control tokens; None where the vocabulary has no such token."""

    mask: int | None = None
    im_start: int | None = None
    im_end: int | None = None
    think_start: int | None = None
    think_end: int | None = None
    tool_call_start: int | None = None
    tool_call_end: int | None = None
    eos: tuple[int, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    """Texts that templates know by name, such as ``bos_token``."""


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``, or an empty one when there is no such file."""
    if not path.is_file():
        return {}
    try:
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as JSON ({error}); replace the file") from error
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path}: holds no JSON object; replace the file")
    return loaded


def find_special_tokens(vocabulary: Mapping[str, int], model_dir: Path) -> SpecialTokens:
    """Looks the usual spellings up; ids that configs name win, of end tokens those of
    generation_config.json.
    """
    config = read_json(model_dir / "config.json")
    found: dict[str, Any] = {
        name: next((vocabulary[text] for text in texts if text in vocabulary), None)
        for name, texts in _SPELLINGS.items()
    }
    if isinstance(config.get("mask_token_id"), int):
        found["mask"] = config["mask_token_id"]
    eos = _eos_ids(config, vocabulary, model_dir)
    return SpecialTokens(**found, eos=eos, names=_named_tokens(model_dir))


def _named_tokens(model_dir: Path) -> tuple[tuple[str, str], ...]:
    """The tokens that a checkpoint's files name by role; tokenizer_config.json wins."""
    named: dict[str, str] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        for role, value in read_json(model_dir / file).items():
            text = value.get("content") if isinstance(value, dict) else value
            if role.endswith("_token") and isinstance(text, str):
                named[role] = text
    return tuple(named.items())


def _eos_ids(
    config: Mapping[str, Any], vocabulary: Mapping[str, int], model_dir: Path
) -> tuple[int, ...]:
    generation = read_json(model_dir / "generation_config.json")
    configured = generation.get("eos_token_id", config.get("eos_token_id"))
    if isinstance(configured, int):
        return (configured,)
    if isinstance(configured, list) and configured:
        return tuple(int(token_id) for token_id in configured)
    named = read_json(model_dir / "tokenizer_config.json").get("eos_token")
    if isinstance(named, dict):
        named = named.get("content")
    spellings = (named,) if isinstance(named, str) else _DEFAULT_EOS
    return tuple(vocabulary[text] for text in spellings if text in vocabulary)[:1]
