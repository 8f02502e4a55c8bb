"""The flags by which commands split a model over processes. Needs no torch."""

from typing import Annotated

import typer

TensorParallel = Annotated[
    int, typer.Option(min=1, help="Processes that share the model, each with a part of it.")
]
RankTimeout = Annotated[
    float, typer.Option(help="Seconds after which a process that does not answer counts as dead.")
]
