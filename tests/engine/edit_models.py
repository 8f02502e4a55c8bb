"""Fake models that insert and delete, and requests for them. Holds no tests."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from blockdiff.engine import Engine, EngineConfig

from .fakes import MASK, Array, FakeModel, HashModel, info, request

DELETE, SPLIT = 37, 36
EDITS = {
    "supports_editing": True,
    "block_anchor": "zero",
    "delete_token_id": DELETE,
    "split_token_id": SPLIT,
    "block_lengths_allowed": (2, 3, 4, 8),
}
CONTROLS = {MASK, DELETE, SPLIT}


class EditModel(HashModel):
    """Says control tokens and EOS often, and in few variants, so that blocks come back."""

    def __init__(self, control: float, variants: int) -> None:
        super().__init__(info(**EDITS))
        self.control, self.variants = control, variants

    def rows(self, prefix: Sequence[int], seen: Sequence[int], is_preview: bool) -> Array:
        answers = []
        for place in range(len(seen)):
            state = sum(3**i * token for i, token in enumerate(seen)) % self.variants
            key = zlib.crc32(f"{sum(prefix)} {len(prefix)} {place} {state}".encode())
            generator = np.random.default_rng(key)
            row = generator.normal(size=self.info.vocab_size) * generator.uniform(0.5, 6)
            row[36:40] += generator.normal(size=4) * self.control
            answers.append(row)
        return np.array(answers)


def engine(model: FakeModel, slots: int = 3) -> Engine:
    return Engine(model, EngineConfig(max_slots=slots, max_context=96))


def numbered(uid: int, **fields: Any) -> Any:
    prompt = [(5 * uid + k) % 30 + 1 for k in range(1 + uid % 7)]
    # a mask and control tokens in a prompt are tokens like any other
    prompt[-1] = (prompt[-1], MASK, DELETE, SPLIT)[uid % 4]
    usual = {"prompt": prompt, "max_tokens": 9, "threshold": 0.5, "editing_threshold": 0.0}
    return request(uid, **{**usual, **fields})


class Scripted(FakeModel):
    """At each preview of a block says, per canvas shown, ``answers[canvas]`` or the canvas."""

    def __init__(self, answers: dict[tuple[int, ...], Sequence[int]], sure: float = 0.99) -> None:
        super().__init__(info(**EDITS))
        self.answers, self.sure = answers, sure
        self.shown: list[list[int]] = []

    def rows(self, prefix: Sequence[int], seen: Sequence[int], is_preview: bool) -> Array:
        if is_preview:
            self.shown.append(list(seen))
        said = self.answers.get(tuple(seen), seen)
        count = self.info.vocab_size
        answers = np.full((len(seen), count), np.log((1 - self.sure) / (count - 1)))
        answers[np.arange(len(seen)), list(said)] = np.log(self.sure)
        return answers
