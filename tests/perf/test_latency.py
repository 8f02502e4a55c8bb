"""What a newcomer costs, counted in rounds on a minuscule model."""

from pathlib import Path

import pytest

from blockdiff.checkpoint import load_model
from blockdiff.models.trunk import LanguageModel
from perf.checkpoints import MASKED, ModelSize, write_checkpoint
from perf.latency import contrast, prompt_rounds

SIZE = ModelSize(
    hidden=32,
    layers=2,
    heads=4,
    head_dim=8,
    experts=4,
    chosen=2,
    inner=16,
    vocabulary=2048,
    block=8,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder: Path = tmp_path_factory.mktemp("model")
    return load_model(write_checkpoint(folder, MASKED, SIZE))


@pytest.mark.parametrize("budget, rounds", [(8, 32), (64, 4), (100, 3), (512, 1)])
def test_a_prompt_fills_every_round(model: LanguageModel, budget: int, rounds: int) -> None:
    assert prompt_rounds(model, budget, 256) == rounds


def test_a_newcomer_costs_the_others_no_round(model: LanguageModel) -> None:
    found = contrast(model, budget=16, newcomer=64, blocks=5, threads=1)
    assert found.rounds == (4, 4)
    assert found.newcomer_rounds == 4
