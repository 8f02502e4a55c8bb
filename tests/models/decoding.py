"""Tokens that a small model generates through the engine. Holds no tests."""

from typing import Any

from blockdiff.engine import Engine, EngineConfig
from blockdiff.models.base import BlockDiffusionModel
from tests.engine.fakes import ids, request, run


def generate(model: BlockDiffusionModel) -> list[list[int]]:
    """Outputs of three requests that share rounds; canvases of random tokens by their rules."""
    canvas = {"denoise_steps": 6, "entropy_bound": 0.7}
    rules: dict[str, Any] = {"threshold": 0.6} if model.info.uniform is None else canvas
    wanted = [
        request(
            uid, [2 + (7 * uid + place) % 29 for place in range(3 + 5 * uid)], seed=uid, **rules
        )
        for uid in range(3)
    ]
    results = run(Engine(model, EngineConfig(max_slots=2, max_context=48)), wanted)
    return [ids(blocks) for blocks in results.values()]
