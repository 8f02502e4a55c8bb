"""Attention over flat rows gives what padded groups give, and leaves the same memory.

Its kernels are interpreted; other ops stay as they are. Run: pytest tests/models
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch
from blockdiff.models.layers.flat import attends_flat
from blockdiff.models.round_shape import RoundShape
from blockdiff.models.trunk import LanguageModel
from blockdiff.transfer import to_device
from blockdiff_kernels.implementation import using

from .families import make_model
from .test_pages import BLOCK, CONTEXT, PAGE, POOL, SLOTS, Segment, prefill, preview, segment

KERNELS = "auto,attention=triton,rope=triton"


@pytest.fixture(params=["hybrid C", "llada2", "diffusion_gemma"], scope="module")
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> LanguageModel:
    return make_model(request.param, tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _poisoned_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows that attention does not write hold nan."""
    plain = torch.Tensor.new_empty

    def poisoned(*args: object, **named: object) -> torch.Tensor:
        found: torch.Tensor = plain(*args, **named)  # type: ignore[arg-type]
        return found.fill_(float("nan")) if found.is_floating_point() else found

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    yield


def batch_of(segments: list[Segment], snapshots: dict[int, int]) -> RoundBatch:
    """Slot s has pages 8 s to 8 s + 7."""
    lines = np.full(len(segments), -1)
    for number, line in snapshots.items():
        lines[number] = line
    pages = np.array([[8 * own.slot + place for place in range(6)] for own in segments])
    return RoundBatch.from_segments(segments, pages, lines)


ROUNDS = [
    # two waves of a prompt, a snapshot between them, beside a short one
    ([prefill(0, 0, 24), prefill(0, 24, 11), prefill(1, 0, 16)], {0: 4}),
    # an unfinished prompt ends beside a commit with its preview, and another's first preview
    ([prefill(0, 35, 5), segment(Phase.COMMIT, 1, 16, BLOCK), preview(1, 24), preview(0, 40)], {}),
    ([preview(0, 40), preview(1, 24)], {}),
]


def test_flat_rows_give_what_padded_ones_give(model: LanguageModel) -> None:
    padded, flat = (model.new_caches(SLOTS, CONTEXT, POOL) for _ in range(2))
    for segments, snapshots in ROUNDS:
        batch = batch_of(segments, snapshots)
        expected = model.hidden(batch, padded)
        with using(KERNELS):
            found = model.hidden(batch, flat)
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)
    for mine, theirs in zip(
        (*flat.page_stores, *flat.state_stores),
        (*padded.page_stores, *padded.state_stores),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-4)


def test_only_fast_numerics_attend_flat() -> None:
    cpu = torch.device("cpu")
    assert not attends_flat(cpu, is_deterministic=False)
    with using(KERNELS):
        assert attends_flat(cpu, is_deterministic=False)
        assert not attends_flat(cpu, is_deterministic=True)


def test_fillers_are_left_alone(model: LanguageModel) -> None:
    plain, filled = (model.new_caches(SLOTS, CONTEXT, POOL) for _ in range(2))
    prompts = batch_of([prefill(0, 0, 40), prefill(1, 0, 16)], {})
    for caches in (plain, filled):
        model.hidden(prompts, caches)
    batch = batch_of([segment(Phase.COMMIT, 1, 16, BLOCK), preview(0, 40), preview(1, 24)], {0: 4})
    shape = RoundShape(len(batch.token_ids) + 5, 2, 4, BLOCK, len(batch.logit_rows) + 1, 5)
    assert shape.holds(RoundShape.of(batch, PAGE))
    expected = model.hidden(batch, plain)
    with using(KERNELS):
        host = model.prepare(batch, filled, shape)
        found = model.run(host, to_device(host.arrays, model.device), filled)
    torch.testing.assert_close(found[: len(expected)], expected, rtol=2e-4, atol=2e-4)
    for mine, theirs in zip(filled.page_stores, plain.page_stores, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-4)
