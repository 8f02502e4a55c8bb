"""Options that set up the engine, for the commands that run one without a server."""

from typing import Annotated

import typer

TruncateLastBlock = Annotated[
    bool,
    typer.Option("--truncate-last-block", help="End the last block where --max-tokens does."),
]
Deterministic = Annotated[
    bool,
    typer.Option("--deterministic", help="A request's output has the same bits in any batch."),
]
