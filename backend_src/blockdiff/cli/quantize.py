"""``blockdiff weights quantize``: a smaller copy of a checkpoint. Knows flags only."""

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from blockdiff.cli.sizes import size_text
from blockdiff.errors import ConfigError


class Kind(str, Enum):
    int8 = "int8"
    int4 = "int4"
    fp8 = "fp8"


def quantize_command(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Checkpoint folder to read.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="New folder to write.")],
    dtype: Annotated[Kind, typer.Option(help="What projections become.")],
    group_size: Annotated[
        int | None,
        typer.Option(
            help="int4: inputs that share a scale: 32, 64 or 128; default: the most that fits."
        ),
    ] = None,
) -> None:
    """Write a copy with quantised projections, as compressed-tensors, and its manifest."""
    # torch takes seconds to import
    from blockdiff.checkpoint.quantize import quantize_checkpoint
    from blockdiff.checkpoint.scheme import Scheme
    from blockdiff.cli.loading import progress_bar
    from blockdiff.config.quantization import GROUP_SIZES

    if group_size is not None and dtype is not Kind.int4:
        raise ConfigError(f"--group-size: only int4 has groups, not {dtype.value}; leave it out")
    if group_size is not None and group_size not in GROUP_SIZES:
        raise ConfigError(f"--group-size: {group_size} must be one of {list(GROUP_SIZES)}")
    scheme = Scheme(dtype.value, group_size)
    with progress_bar("quantising") as advance:
        made = quantize_checkpoint(source, target, scheme, advance)
    groups = "" if made.group is None else f" in groups of {made.group}"
    typer.echo(
        f"{target}: {dtype.value} checkpoint{groups} written, weights "
        f"{size_text(made.source_bytes)} -> {size_text(made.target_bytes)}; "
        f"manifest SHA-256 {made.manifest_sha256}"
    )
