"""Whether a tokenizer belongs to a model: its ids fit the embedding, and both mean the same tokens.

Knows the names of special tokens in a checkpoint's files; knows nothing of tensors.
"""

from pathlib import Path
from typing import Any

from blockdiff.config import AnyConfig
from blockdiff.errors import ConfigError
from blockdiff.text.special import read_json
from blockdiff.text.tokenizer import Tokenizer

_FILES = ("tokenizer_config.json", "special_tokens_map.json")
# A mask that is one of these would end or begin texts; an end that is one would never be decided.
_NOT_A_MASK = ("bos_token", "eos_token", "unk_token")
_NOT_AN_END = ("mask_token", "unk_token")


def require_fit(tokenizer: Tokenizer, folder: Path, config: AnyConfig) -> None:
    """Raise one ConfigError line when tokenizer and model of ``folder`` do not belong together.

    An embedding with more rows than the tokenizer has ids is fine: the spare rows are padding.
    """
    if tokenizer.largest_id >= config.vocab_size:
        raise ConfigError(
            f"{folder / 'tokenizer.json'}: largest token id is {tokenizer.largest_id}, but the "
            f"model's vocab_size is {config.vocab_size}; take tokenizer and weights of one model"
        )
    mask = getattr(config, "mask_token_id", None)
    if mask is not None and mask in config.eos_token_ids:
        raise ConfigError(
            f"config.json: mask_token_id {mask} is an eos_token_id too; they must differ"
        )
    for name in _FILES:
        named = read_json(folder / name)
        where = f"{folder / name}"
        if mask is not None:
            _require_same(tokenizer, named, where, mask)
            for role in _NOT_A_MASK:
                _require_other(tokenizer, named, f"{where}: {role}", (mask,), "mask_token_id")
        for role in _NOT_AN_END:
            place = f"{where}: {role}"
            _require_other(tokenizer, named, place, config.eos_token_ids, "eos_token_id")


def _require_same(tokenizer: Tokenizer, named: dict[str, Any], where: str, mask: int) -> None:
    text, found = _token(tokenizer, named, "mask_token")
    if found is not None and found != mask:
        raise ConfigError(
            f"{where}: mask_token {text!r} has id {found}, but config.json says mask_token_id "
            f"{mask}; take both from one model"
        )


def _require_other(
    tokenizer: Tokenizer, named: dict[str, Any], place: str, ids: tuple[int, ...], key: str
) -> None:
    text, found = _token(tokenizer, named, place.rpartition(" ")[2])
    if found in ids:
        raise ConfigError(f"{place} {text!r} has id {found}, which the config names as {key}")


def _token(tokenizer: Tokenizer, named: dict[str, Any], role: str) -> tuple[str, int | None]:
    """Text and id of a role; no id where the file or the vocabulary lacks it."""
    value = named.get(role)
    text = value.get("content") if isinstance(value, dict) else value
    return (text, tokenizer.id_of(text)) if isinstance(text, str) else ("", None)
