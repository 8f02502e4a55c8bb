"""Checks a checkpoint folder without reading its weights. Shared by serve, doctor and the demo."""

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
    from blockdiff.checkpoint.load import check_dtype, require_device

    check_dtype(dtype, require_device(device))
    return check_files(folder, dtype).config


def check_tokenizer(folder: Path, config: "AnyConfig") -> int:
    """Check that the tokenizer loads and fits the model; returns its highest id plus one."""
    from blockdiff.text import Tokenizer
    from blockdiff.text.fit import require_fit

    tokenizer = Tokenizer.load(folder)
    require_fit(tokenizer, folder, config)
    return tokenizer.largest_id + 1


def weight_bytes(folder: Path, dtype: str) -> int:
    """Memory that the weights take in ``dtype``, as a plan counts them."""
    from blockdiff.cli.dtype_option import short_dtype
    from blockdiff.planning import read_model
    from blockdiff.planning.needs import weight_bytes

    return weight_bytes(read_model(folder), short_dtype(dtype), 1)
