"""Counted experts are those that were applied, in every family; what is published and when.

Run: pytest tests/engine/test_expert_statistics.py
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.cli.main import run as run_command
from blockdiff.engine import Engine, EngineConfig, EngineLoop
from blockdiff.errors import ConfigError
from blockdiff.models.layers.experts import Experts
from blockdiff.models.trunk import LanguageModel

from ..parallel.processes import wait_until
from .checkpoint import CHECKPOINT, FIXTURES
from .fakes import request, run

CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "shared expert": ("clover_moe/layers4_block8", {}, "float32"),
    "quantised": ("clover_moe/layers4_block8", {}, "int8"),
    "coreset": (
        "clover_moe/layers4_block8",
        {"expert_coreset": {"rule": "top_p", "top_p": 0.4}},
        "float32",
    ),
    "groups": ("llada2_moe/block8", {}, "float32"),
    "pools": ("llada2_moe/block8", {"expert_capacity": 5}, "float32"),
    "softmax": ("sdar_moe/block4", {}, "float32"),
    "canvas": ("diffusion_gemma/canvas8", {}, "float32"),
}


class Watched(Experts):
    """Passes everything on and counts the experts that got a weight."""

    def __init__(self, own: Experts, routed: int) -> None:
        self.own, self.routed, self.count = own, routed, own.count
        self.hits, self.ways = [0] * routed, set[str]()

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        self.ways.add("chosen")
        for expert in ids.flatten().tolist():
            if expert < self.routed:
                self.hits[expert] += 1
        return self.own(x, weights, ids)

    def prefers_all(self, rows: int) -> bool:
        # not the experts' own choice: rounds of both sizes shall come
        return rows < 16

    def weigh_all(self, x: Tensor, weights: Tensor) -> Tensor:
        self.ways.add("all")
        for expert, hits in enumerate((weights[:, : self.routed] > 0).sum(0).tolist()):
            self.hits[expert] += hits
        return self.own.weigh_all(x, weights)


def watch(model: LanguageModel) -> list[Watched]:
    """One watcher per layer that has experts."""
    watched = []
    for layer in model.layers:
        owner = layer.moe.weights if hasattr(layer, "moe") else layer.feed_forward
        owner = getattr(owner, "routed", owner)
        if hasattr(owner, "experts"):
            owner.experts = Watched(owner.experts, model.info.num_experts)
            watched.append(owner.experts)
    return watched


def requests() -> list[Any]:
    return [request(uid, range(3, 30 + uid), max_tokens=13, ignore_eos=True) for uid in range(3)]


@pytest.mark.parametrize("name", CASES)
def test_counts_are_what_the_experts_were_given(tmp_path: Path, name: str) -> None:
    case, changes, dtype = CASES[name]
    folder = Path(shutil.copytree(FIXTURES / case, tmp_path / "model"))
    facts = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(facts | changes), "utf-8")
    model = load_model(folder, "cpu", dtype)
    watched = watch(model)
    # the prompts begin alike, and what is not computed again is not counted
    config = EngineConfig(
        max_slots=2, max_context=64, expert_statistics_interval=1, prefix_cache=False
    )
    engine = Engine(model, config)
    results = run(engine, requests())
    assert all(blocks[-1].error is None for blocks in results.values())
    counts = engine.publish_statistics()
    assert counts is not None and counts.rounds == engine.counters.rounds
    assert counts.hits.tolist() == [layer.hits for layer in watched]
    assert counts.layers == model.info.expert_layers and len(watched) == len(counts.layers)
    top_k = counts.hits.sum(axis=1) / counts.rows
    assert (top_k[:-1] == top_k[0]).all() and top_k[0] >= 1
    # rows whose output nobody reads do not go through the last layer's experts
    looks_at_blocks = name in ("coreset", "pools")
    assert top_k[-1] == top_k[0] if looks_at_blocks else 0 < top_k[-1] < top_k[0]
    if name == "shared expert":
        assert {way for layer in watched for way in layer.ways} == {"chosen", "all"}


def test_every_so_many_rounds_without_a_change_of_tokens() -> None:
    model = load_model(CHECKPOINT)
    found = {}
    for interval in (0, 1, 3):
        config = EngineConfig(max_slots=2, max_context=64, expert_statistics_interval=interval)
        engine = Engine(model, config)
        engine.warm_up()
        assert engine.publish_statistics() is None
        found[interval] = run(engine, requests())
        counts = engine.publish_statistics()
        if interval:
            assert counts is not None
            assert counts.rounds == -(-engine.counters.rounds // interval)
            assert engine.publish_statistics() is counts
    assert found[0] == found[1] == found[3] and counts is not None
    with pytest.raises(ConfigError, match="expert_statistics_interval: -1"):
        EngineConfig(expert_statistics_interval=-1)


def test_an_idle_loop_has_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockdiff.engine.statistics.PUBLISH_SECONDS", 1e9)
    loop = EngineLoop(Engine(load_model(CHECKPOINT), EngineConfig(max_slots=1, max_context=64)))
    assert "expert_layers" not in loop.snapshot()
    results: list[Any] = []
    loop.start()
    loop.submit(request(1, max_tokens=4), results.append, loop.wait_for_slot(lambda: None))
    try:
        wait_until(lambda: "expert_layers" in loop.snapshot(), "counts of an idle engine")
    finally:
        loop.shutdown(30.0)
    shown = loop.snapshot()
    assert results[-1].is_final and shown["expert_rows"] > 0
    assert list(shown["expert_layers"]) == [0, 1, 2, 3]
    for facts in shown["expert_layers"].values():
        assert facts["imbalance"] > 1 and 0 < facts["active"] <= 1


def test_the_command_writes_counts_and_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def generate(model: Path, file: str) -> int:
        flags = ["--input-ids", "1,2,3", "--max-tokens", "4", "--expert-statistics", file]
        return run_command(["generate", "--model", str(model), *flags])

    path = tmp_path / "experts.json"
    assert generate(CHECKPOINT, str(path)) == 0
    shown = json.loads(path.read_text())
    # a clover row uses 2 of 8 experts in each of 4 layers, the last of which sees decided rows
    *hits, last = [sum(layer["hits"]) for layer in shown["layers"]]
    assert hits == [2 * shown["rows"]] * 3 and 0 < last < hits[0]
    assert shown["experts"] == len(shown["layers"][0]["hits"])
    assert generate(CHECKPOINT, str(tmp_path / "experts.png")) == 0
    assert (tmp_path / "experts.png").read_bytes().startswith(b"\x89PNG")
    for model, file, text in (
        (CHECKPOINT, "experts.txt", "must end in .json or .png"),
        (FIXTURES / "sdar" / "block4", str(path), "this model has no experts"),
    ):
        assert generate(model, file) == 2
        assert text in capsys.readouterr().err
