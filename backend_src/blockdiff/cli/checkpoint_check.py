"""Checks a checkpoint folder without reading its weights. Shared by serve, doctor and the demo."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from blockdiff.errors import ConfigError

if TYPE_CHECKING:
    from blockdiff.config import AnyConfig

# torch takes seconds to import: the checks import what needs it themselves.


class _Checked(Exception):
    """Raised instead of reading the first tensor: every check is then done."""


def check_checkpoint(
    folder: Path, dtype: str = "float32", device: str = "cpu", ranks: int = 1
) -> "AnyConfig":
    """Check config, shards, tensor shapes and tokenizer; one line says what is wrong.

    With more than one rank, check that so many can share the model too.
    """
    config = check_checkpoint_files(folder, dtype, device)
    if ranks > 1:
        from blockdiff.models.share import check_divisible

        check_divisible(config, ranks)
    check_tokenizer(folder, config.vocab_size)
    return config


def check_checkpoint_files(
    folder: Path, dtype: str = "float32", device: str = "cpu"
) -> "AnyConfig":
    """Check config.json and that every tensor is there, whole and of the right shape."""
    from blockdiff.checkpoint import load_model
    from blockdiff.config import load_config

    def stop(done: int, total: int) -> None:
        raise _Checked

    config = load_config(folder)
    with contextlib.suppress(_Checked):
        load_model(folder, device, dtype, progress=stop)
    return config


def check_tokenizer(folder: Path, vocab_size: int) -> int:
    """Check that the tokenizer loads and fits the embedding; returns its highest id plus one."""
    from tokenizers import Tokenizer as Library

    from blockdiff.text import Tokenizer

    path = folder / "tokenizer.json"
    if not path.exists():
        raise ConfigError(f"{path}: file not found; a checkpoint brings its tokenizer")
    Tokenizer.load(folder)
    vocabulary = Library.from_file(str(path)).get_vocab(with_added_tokens=True)
    tokens = max(vocabulary.values(), default=-1) + 1
    if tokens > vocab_size:
        raise ConfigError(
            f"{path}: {tokens} tokens, but the model's embedding has only {vocab_size}; "
            "take tokenizer and weights of the same model"
        )
    return tokens


def weight_bytes(folder: Path, dtype: str) -> int:
    """Memory that the weights take in ``dtype``."""
    from blockdiff.checkpoint.reader import open_checkpoint

    size = 4 if dtype == "float32" else 2
    total = 0
    for tensor in open_checkpoint(folder).tensors.values():
        elements = 1
        for length in tensor.shape:
            elements *= length
        total += elements * size
    return total
