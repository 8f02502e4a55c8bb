"""A round that is filled up to a shape gives the same results and leaves the same memory.

Run: pytest tests/models
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.models.round_shape import RoundShape
from blockdiff.models.trunk import LanguageModel
from blockdiff.transfer import to_device

from .families import FAMILIES, make_model
from .test_pages import BLOCK, CONTEXT, PAGE, POOL, SLOTS, Segment, prefill, preview, segment

# writing segments, previews, pages: some are the round's own size, some far beyond it
FEW, MANY = (1, 2, 3), (3, 7, 5)


@pytest.fixture(params=FAMILIES, scope="module")
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LanguageModel:
    return make_model(request.param, tmp_path_factory.mktemp("model"))


def commit(slot: int, context: int, count: int = BLOCK) -> Segment:
    return segment(Phase.COMMIT, slot, context, count)


ROUNDS = [
    # a short prompt ends beside another's commit; a snapshot is taken
    ([commit(1, 16), preview(0, 40), preview(1, 24)], {0: 4}),
    ([preview(0, 40)], {}),
    ([commit(0, 40), commit(1, 24, 3), preview(0, 48)], {}),
    ([commit(0, 48)], {0: 3}),
    ([preview(1, 27), preview(0, 56)], {}),
    # nobody asks for a row
    ([replace(own, logit_rows=()) for own in (commit(0, 56), preview(1, 27))], {}),
]


def batch_of(segments: list[Segment], snapshots: dict[int, int]) -> RoundBatch:
    """Pages are named as a scheduler would; slot s has pages 8 s to 8 s + 7."""
    lines = np.full(len(segments), -1)
    for number, line in snapshots.items():
        lines[number] = line
    pages = np.array([[8 * own.slot + place for place in range(6)] for own in segments])
    return RoundBatch.from_segments(segments, pages, lines)


@pytest.mark.parametrize("most", [FEW, MANY])
def test_fillers_change_nothing(model: LanguageModel, most: tuple[int, int, int]) -> None:
    plain, filled = (model.new_caches(SLOTS, CONTEXT, POOL) for _ in range(2))
    info = model.info
    counts = [ExpertHits(info.expert_layers, info.num_experts, model.device) for _ in range(2)]
    prompts = batch_of([prefill(0, 0, 40), prefill(1, 0, 16)], {})
    for caches in (plain, filled):
        model.hidden(prompts, caches)
    for segments, snapshots in ROUNDS:
        batch = batch_of(segments, snapshots)
        writing = int(batch.is_writing.sum())
        shape = RoundShape(
            rows=len(batch.token_ids) + 5,
            writing=min(max(most[0], writing), SLOTS) if writing else 0,
            previews=most[1] if writing < len(segments) else 0,
            width=BLOCK,
            logit_rows=len(batch.logit_rows) + 2,
            pages=max(most[2], -(-int(batch.contexts.max()) // PAGE)),
        )
        assert shape.holds(RoundShape.of(batch, PAGE))
        expected = model.hidden(batch, plain, hits=counts[0])
        host = model.prepare(batch, filled, shape)
        found = model.run(host, to_device(host.arrays, model.device), filled, hits=counts[1])
        assert len(found) == shape.logit_rows
        torch.testing.assert_close(found[: len(expected)], expected, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(counts[1].counts, counts[0].counts)
    for mine, theirs in zip(filled.state_stores, plain.state_stores, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)
    for mine, theirs in zip(filled.page_stores, plain.page_stores, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-5, atol=2e-5)
