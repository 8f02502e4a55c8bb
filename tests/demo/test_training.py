"""Training: the same seed gives the same run, and a resumed run is the uninterrupted one."""

from pathlib import Path

import pytest
import torch

from demo.train import Trainer, losses

STEPS = 2


def run(folder: Path, steps: int) -> list[float]:
    """Loss of each step from wherever the folder's state is, which is saved again."""
    folder.mkdir(exist_ok=True)
    trainer = Trainer(folder, seed=4, sequences=1)
    if trainer.state_file.exists():
        trainer.resume()
    found = []
    while trainer.step < steps:
        found.append(float(trainer.train_step(losses, STEPS)[0]))
    trainer.save()
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    folder = tmp_path_factory.mktemp("training") / "whole"
    return folder, run(folder, STEPS)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = torch.load(folder / "training_state.pt", weights_only=False)
    found: dict[str, torch.Tensor] = state["model"]
    return found


def test_a_resumed_run_is_the_uninterrupted_one(
    whole: tuple[Path, list[float]], tmp_path: Path
) -> None:
    folder, expected = whole
    found = run(tmp_path / "part", 1) + run(tmp_path / "part", STEPS)
    assert found == expected and len(set(found)) == STEPS
    resumed = weights(tmp_path / "part")
    assert all(torch.equal(value, resumed[name]) for name, value in weights(folder).items())
