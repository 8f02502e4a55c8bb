"""Checks a checkpoint folder without reading its weights. Shared by serve and doctor."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blockdiff.errors import ConfigError


@dataclass(frozen=True)
class CheckpointFacts:
    """What could be learnt without loading."""

    model_type: str
    vocab_size: int
    weight_bytes: int
    tokenizer_size: int


class _Checked(Exception):
    """Raised instead of reading the first tensor: every check is then done."""


def check_checkpoint(folder: Path, dtype: str = "float32") -> CheckpointFacts:
    """Check config, shards, tensor shapes and tokenizer; one line says what is wrong."""
    # Imported here: torch takes seconds.
    from blockdiff.config import load_config

    config = load_config(folder)
    _check_tensors(folder, dtype)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    tokens = _tokenizer_size(folder)
    if tokens > config.vocab_size:
        raise ConfigError(
            f"{folder / 'tokenizer.json'}: {tokens} tokens, but the model's embedding has only "
            f"{config.vocab_size}; take tokenizer and weights of the same model"
        )
    return CheckpointFacts(config.model_type, config.vocab_size, size, tokens)


def _check_tensors(folder: Path, dtype: str) -> None:
    from blockdiff.checkpoint import load_model

    def stop(done: int, total: int) -> None:
        raise _Checked

    progress: Callable[[int, int], None] = stop
    try:
        load_model(folder, dtype=dtype, progress=progress)
    except _Checked:
        return


def _tokenizer_size(folder: Path) -> int:
    """Highest token id plus one."""
    from blockdiff.text import Tokenizer

    tokenizer_path = folder / "tokenizer.json"
    if not tokenizer_path.exists():
        raise ConfigError(f"{tokenizer_path}: file not found; a checkpoint brings its tokenizer")
    Tokenizer.load(folder)
    from tokenizers import Tokenizer as Library

    vocabulary = Library.from_file(str(tokenizer_path)).get_vocab(with_added_tokens=True)
    return max(vocabulary.values(), default=-1) + 1
