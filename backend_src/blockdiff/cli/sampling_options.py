"""Flags of ``blockdiff generate`` for changed distributions and for what is told of tokens.

Knows their names and help; knows nothing of what becomes of them.
"""

from typing import Annotated

import typer

MinP = Annotated[
    float | None, typer.Option(help="Least share of the best token's probability; 0 is off.")
]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Of tokens that the answer holds; 1 is off.")
]
PresencePenalty = Annotated[float | None, typer.Option(help="The same, taken off; 0 is off.")]
FrequencyPenalty = Annotated[float | None, typer.Option(help="The same, for each time.")]
LogitBias = Annotated[
    str | None, typer.Option(help='What logits get, by token id, as JSON: {"17": -5}.')
]
StopRamp = Annotated[
    str | None,
    typer.Option(help='Growing boost of end tokens: {"start": 64, "slope": 0.1, "most": 5}.'),
]
ThinkEndRamp = Annotated[str | None, typer.Option(help="The same for </think>.")]
LogProbs = Annotated[bool, typer.Option("--return-log-probs", help="Show them in JSON output.")]
TopLogProbs = Annotated[
    int | None, typer.Option(help="Show so many most probable tokens of each in JSON output.")
]
StepMap = Annotated[
    bool, typer.Option("--return-step-map", help="Show which step settled each in JSON output.")
]
