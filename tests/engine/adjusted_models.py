"""Fake models whose logits hold a request's penalties, biases and ramps already. Holds no tests.

Each is the plain definition of the engine's own: asked without them, it must answer as the model
beneath does when the request has them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from blockdiff.core import Mode, Request

from .fakes import EOS, MASK, Array, FakeModel


def plain(wanted: Request) -> Request:
    """``wanted`` without what ``AdjustedModel`` does for it."""
    sampling = replace(
        wanted.sampling,
        repetition_penalty=1.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        logit_bias=(),
        ramps=(),
    )
    return replace(wanted, sampling=sampling)


class AdjustedModel(FakeModel):
    """Answers one request, by itself, as ``inner`` with the request's changes."""

    def __init__(self, inner: FakeModel, wanted: Request) -> None:
        super().__init__(inner.info)
        self.inner, self.wanted = inner, wanted
        self.shown: list[tuple[int, list[int], Array]] = []
        """Previews: first position, canvas, and the logits of its rows."""

    def rows(self, prefix: Sequence[int], seen: Sequence[int], is_preview: bool) -> Array:
        answers = np.float32(self.inner.rows(prefix, seen, is_preview))
        start = len(self.wanted.input_ids)
        for place, row in enumerate(answers):
            if is_preview:
                final, position = [*prefix, *seen], len(prefix) + place
                final[position] = MASK
            else:
                final, position = [*prefix, *seen[: place + 1]], len(prefix) + place + 1
            response = [token for token in final[start:] if token != MASK]
            adjust_row(row, response, position - start, self.wanted)
        if is_preview:
            self.shown.append((len(prefix), list(seen), answers.copy()))
        return np.asarray(answers)


def adjust_row(row: Any, response: list[int], place: int, wanted: Request) -> None:
    own = wanted.sampling
    for token in set(response):
        is_positive = row[token] > 0
        factor = np.float32(own.repetition_penalty)
        row[token] = row[token] / factor if is_positive else row[token] * factor
        row[token] -= np.float32(own.presence_penalty)
        row[token] -= np.float32(own.frequency_penalty) * np.float32(response.count(token))
    for token, bias in own.logit_bias:
        row[token] += np.float32(bias)
    for ramp in own.ramps:
        for token in (EOS,) if ramp.token_ids is None else ramp.token_ids:
            if ramp.is_once and token in response:
                continue
            boost = min(max(ramp.slope * (place - ramp.start), 0.0), ramp.most)
            row[token] += np.float32(boost)


def is_single(wanted: Request) -> bool:
    return wanted.decoding.mode is Mode.AUTOREGRESSIVE
