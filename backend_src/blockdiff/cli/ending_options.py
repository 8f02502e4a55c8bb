"""Flags of ``blockdiff generate`` for how long a model may think and what ends its answer.

Knows their names and help; knows nothing of what becomes of them.
"""

from typing import Annotated

import typer

ThinkingBudget = Annotated[
    int | None, typer.Option(min=-1, help="Most tokens of the think block; -1 is no limit.")
]
Stop = Annotated[list[str] | None, typer.Option(help="Stop string; may be repeated.")]
StopTokenIds = Annotated[
    str | None, typer.Option(help="Further tokens that end the answer, such as 5,17.")
]
IncludeStop = Annotated[
    bool,
    typer.Option("--include-stop-str-in-output", help="Show the text that ended the answer."),
]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after EOS.")]
