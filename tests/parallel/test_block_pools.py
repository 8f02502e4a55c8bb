"""Routers that look at whole blocks, on two ranks: every rank chooses the same experts.

Run: pytest tests/parallel/test_block_pools.py
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from blockdiff.checkpoint import load_model
from blockdiff.engine import Engine, EngineConfig
from blockdiff.models.base import BlockDiffusionModel
from blockdiff.parallel.load import ParallelSettings, load_parallel
from tests.engine.fakes import ids, request, run
from tests.golden import cases


def decode(model: BlockDiffusionModel, **rules: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Greedy outputs of three requests that share rounds, and hits of experts by layer."""
    requests = [
        request(uid, range(3, 12 + 5 * uid), max_tokens=17, threshold=0.3, ignore_eos=True, **rules)
        for uid in range(3)
    ]
    config = EngineConfig(max_slots=3, max_context=64, expert_statistics_interval=1)
    engine = Engine(model, config)
    results = run(engine, requests)
    counts = engine.publish_statistics()
    assert counts is not None
    return [ids(results[uid]) for uid in range(3)], counts.hits.tolist()


@pytest.mark.parametrize(
    ("case", "changes", "rules"),
    [
        ("clover_moe/layers4_block8", {"expert_coreset": {"rule": "top_p", "top_p": 0.4}}, {}),
        (
            "llada2_moe/block8",
            {"expert_capacity": 5, "delete_token_id": 100, "split_token_id": 101},
            {"editing_threshold": 0.1},
        ),
    ],
)
def test_two_ranks_choose_alike(
    tmp_path: Path, case: str, changes: dict[str, Any], rules: dict[str, Any]
) -> None:
    plain, _ = decode(load_model(cases.FIXTURES / case))
    folder = Path(shutil.copytree(cases.FIXTURES / case, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changes), "utf-8")
    want = decode(load_model(folder), **rules)
    assert want[0] != plain
    shared = load_parallel(folder, "cpu", "float32", ParallelSettings(2))
    try:
        assert decode(shared, **rules) == want
    finally:
        shared.close()
