"""Infilling and short last blocks on small checkpoints, against the plain definition of the loop.

Run: pytest tests/golden
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from blockdiff.core import Phase
from blockdiff.engine import Engine, EngineConfig
from blockdiff.models.base import RoundBatch, Segment
from tests.engine.fakes import Array, FakeModel, decode_alone, ids, request, run

from . import cases
from .canvas_decoder import denoise_alone, generate
from .canvas_decoder import request as canvas_request

LENGTH = 4
CASES = ["clover_moe/layers4_block8", "llada2_moe/block8", "sdar_moe/block4"]


class PlainRows(FakeModel):
    """Logits of a checkpoint, each asked for with caches of its own."""

    def __init__(self, case: str) -> None:
        self.model = cases.model(case)
        super().__init__(self.model.info)

    def rows(self, prefix: Sequence[int], seen: Sequence[int], is_preview: bool) -> Array:
        assert is_preview, "these tests decide blocks only"
        caches = self.model.new_caches(1, 128)
        written = [Segment(Phase.PREFILL, 0, 0, prefix, block_length=LENGTH)] if prefix else []
        canvas = Segment(Phase.PREVIEW, 0, len(prefix), seen, range(len(seen)), LENGTH)
        batch = RoundBatch.from_segments([*written, canvas])
        logits: Array = self.model.forward(batch, caches).numpy()
        return logits


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_pins_and_short_last_blocks_follow_the_definition(case: str, truncates: bool) -> None:
    plain = PlainRows(case)
    generator = np.random.default_rng(3)
    # some in every block, and all of the second
    places = {1, 3 * LENGTH + 2, *range(LENGTH, 2 * LENGTH)}
    tokens = generator.integers(1, plain.info.vocab_size - 8, len(places)).tolist()
    pinned = tuple(zip(sorted(places), tokens, strict=True))
    rules: list[dict[str, Any]] = [{"threshold": 0.3}, {"denoise_steps": 2}]
    fields: dict[str, Any] = {"max_tokens": 15, "block_length": LENGTH, "ignore_eos": True}
    prompts = [[5, 6, 7, 8, 9], [11] * LENGTH]
    wanted = [request(uid, prompts[uid], pinned=pinned, **fields, **rules[uid]) for uid in range(2)]
    config = EngineConfig(max_slots=2, max_context=128, truncate_last_block=truncates)
    results = run(Engine(plain.model, config), wanted)
    for one in wanted:
        output = ids(results[one.uid])
        assert output == decode_alone(plain, one, truncates)[0]
        assert [output[place] for place, _ in pinned] == tokens
    free = request(3, prompts[0], **fields, **rules[0])
    assert ids(results[0]) != ids(run(Engine(plain.model), [free])[3])


def test_pins_of_random_canvases_follow_the_definition() -> None:
    places = [2, 3, 5, *range(8, 16), 17]
    pinned = tuple((place, 20 + place) for place in places)
    wanted = [canvas_request(uid, pinned=pinned, entropy_bound=2.0 * uid) for uid in range(2)]
    results = generate(wanted)
    for one in wanted:
        output, steps = denoise_alone(one)
        assert ids(results[one.uid]) == output
        assert [block.denoise_steps for block in results[one.uid]] == steps
        log_probs = [value for block in results[one.uid] for value in block.log_probs]
        assert [(output[p], log_probs[p]) for p in places] == [(20 + p, 0.0) for p in places]
        # a canvas of pins only takes one step
        assert steps[1] == 1
