"""Options that set up the engine, for the commands that run one without a server."""

from typing import Annotated

import typer

from blockdiff.planning.units import parse_size

KvCacheSize = Annotated[
    str | None,
    typer.Option(help="Memory for keys and values, e.g. 8GiB. [default: all slots' longest]"),
]
PrefixCache = Annotated[
    bool, typer.Option(help="Keep committed tokens for requests that begin with the same.")
]
TruncateLastBlock = Annotated[
    bool,
    typer.Option("--truncate-last-block", help="End the last block where --max-tokens does."),
]
Deterministic = Annotated[
    bool,
    typer.Option("--deterministic", help="A request's output has the same bits in any batch."),
]
Kernels = Annotated[
    str | None,
    typer.Option(
        help="auto, reference, cpu or triton, and op=one of them for single ops, joined by "
        "commas; docs/kernels.md lists the ops. [default: auto]"
    ),
]


def optional_bytes(flag: str, text: str | None) -> int | None:
    """Bytes of a size that may be left out or 0; ConfigError for any other without a unit."""
    if text is None:
        return None
    return 0 if text.strip() == "0" else parse_size(flag, text)
