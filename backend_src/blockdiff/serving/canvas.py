"""Canvases on their way out: token ids between the models, text for the caller.

Knows the engine's ``Canvas`` and single tokens' texts; knows nothing of tensors.
"""

import json
import math
from typing import Any

from blockdiff.core import BlockResult, PlaceState
from blockdiff.scheduler.arrays import NO_TOKEN
from blockdiff.text.pieces import PieceTexts

_CONFIDENCE_DIGITS = 4


def to_wire(result: BlockResult) -> str:
    """The canvas of ``result`` as JSON of token ids; empty where it has none."""
    canvas = result.canvas
    if canvas is None:
        return ""
    return json.dumps(
        {
            "block": result.block_index,
            "step": canvas.step,
            "first_token": canvas.first_place,
            "is_finished": not result.is_partial,
            "tokens": list(
                zip(
                    canvas.token_ids,
                    [round(math.exp(value), _CONFIDENCE_DIGITS) for value in canvas.log_probs],
                    map(int, canvas.states),
                    strict=True,
                )
            ),
        }
    )


def to_public(wire: str, pieces: PieceTexts) -> str:
    """What ``to_wire`` gave as the public ``canvas``; docs/serving.md describes it."""
    if not wire:
        return ""
    canvas = json.loads(wire)
    places = canvas["tokens"]
    is_masked = [state == PlaceState.MASKED for _, _, state in places]
    # Guesses and tokens apart: a guess is no part of the text around it.
    texts = pieces.texts(
        [None if hidden else token for (token, _, _), hidden in zip(places, is_masked, strict=True)]
    )
    guesses = pieces.texts(
        [
            token if hidden and token != NO_TOKEN else None
            for (token, _, _), hidden in zip(places, is_masked, strict=True)
        ]
    )
    canvas["tokens"] = [
        _place(place, text, guess)
        for place, text, guess in zip(places, texts, guesses, strict=True)
    ]
    return json.dumps(canvas, ensure_ascii=False)


def _place(place: tuple[int, float, int], text: str | None, guess: str | None) -> dict[str, Any]:
    _, confidence, state = place
    shown: dict[str, Any] = {"text": text, "state": PlaceState(state).name.lower()}
    if text is None and guess is None:
        return shown
    shown["confidence"] = confidence
    return shown if guess is None else {**shown, "guess": guess}
