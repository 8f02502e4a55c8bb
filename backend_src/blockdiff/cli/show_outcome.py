"""How ``blockdiff generate`` shows a finished request: JSON lines, or text for people.

Knows outcomes; knows no flags.
"""

import json
import sys

from rich.console import Console

from blockdiff.cli.outcome_json import as_json
from blockdiff.engine import Engine
from blockdiff.jobs import Outcome
from blockdiff.text import Tokenizer


def print_json(outcome: Outcome, engine: Engine, tokenizer: Tokenizer | None) -> None:
    """One line of JSON on stdout."""
    shown = as_json(outcome, engine.model.info.eos_token_ids, tokenizer)
    sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_text(outcome: Outcome, engine: Engine, tokenizer: Tokenizer | None) -> None:
    """The text, or the ids without a tokenizer, and a line of what it took."""
    shown = as_json(outcome, engine.model.info.eos_token_ids, tokenizer)
    console = Console(highlight=False, soft_wrap=True)
    if shown.get("name"):
        console.print(shown["name"], style="bold", markup=False)
    if shown.get("error"):
        console.print(f"failed: {shown['error']}", style="red", markup=False)
        return
    ids = ",".join(str(token) for token in shown["output_ids"])
    console.print(ids if shown["text"] is None else shown["text"], markup=False)
    counts = outcome.forwards
    previews = f"{counts.preview} previews in {len(outcome.blocks)} blocks"
    steps = " ".join(str(block.denoise_steps) for block in outcome.blocks)
    how = f"{counts.commit} commits" if counts.commit else f"{previews} ({steps})"
    console.print(
        f"{shown['finish_reason']}: {shown['num_input_tokens']} tokens in, "
        f"{shown['num_output_tokens']} out, {how}, {outcome.seconds:.2f} s",
        style="dim",
        markup=False,
    )
