"""Checks a checkpoint folder without reading its weights. Shared by serve, doctor and the demo."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blockdiff.config import AnyConfig

# torch takes seconds to import: the checks import what needs it themselves.


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
    check_tokenizer(folder, config)
    return config


def check_checkpoint_files(
    folder: Path, dtype: str = "float32", device: str = "cpu"
) -> "AnyConfig":
    """Check config.json and that every tensor is there, whole and of the right shape."""
    from blockdiff.checkpoint import check_files
    from blockdiff.checkpoint.load import require_device

    require_device(device)
    return check_files(folder, dtype).config


def check_tokenizer(folder: Path, config: "AnyConfig") -> int:
    """Check that the tokenizer loads and fits the model; returns its highest id plus one."""
    from blockdiff.text import Tokenizer
    from blockdiff.text.fit import require_fit

    tokenizer = Tokenizer.load(folder)
    require_fit(tokenizer, folder, config)
    return tokenizer.largest_id + 1


def weight_bytes(folder: Path, dtype: str) -> int:
    """Memory that the weights take in ``dtype``."""
    from blockdiff.checkpoint.reader import open_checkpoint
    from blockdiff.checkpoint.scheme import KINDS, STORED_DTYPES, is_quantisable
    from blockdiff.weights.headers import BITS

    high, quantised = 32 if dtype == "float32" else 16, 4 if dtype == "int4" else 8
    total = 0
    for name, tensor in open_checkpoint(folder).tensors.items():
        is_projection = is_quantisable(name.removesuffix(".weight"), tensor.shape)
        if tensor.dtype not in STORED_DTYPES:
            bits = BITS[tensor.dtype]
        else:
            bits = quantised if dtype in KINDS and is_projection else high
        total += math.prod(tensor.shape) * bits // 8
    return total
