"""Models whose experts are shared by blocks: LLaDA2.2's routing and coresets of the hybrid trunk.

Run: pytest tests/models
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.cli.logit_requests import parse_request
from blockdiff.config import parse_config
from blockdiff.core import Phase
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import ConfigError, RequestError
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.layers.row_blocks import BlockCover, number_blocks
from blockdiff.models.trunk import LanguageModel

from ..engine.fakes import ids as output_ids
from ..engine.fakes import request, run
from .checkpoints import TINY, random_tensors, write
from .test_config_attention import CONFIGS, write_checkpoint

HYBRID = {**TINY, "num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 6}
BLOCK = 8


def rows(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 31, (count,), generator=generator).tolist()


def segment(phase: Phase, slot: int, context: int, count: int) -> Segment:
    return Segment(phase, slot, context, rows(count, 9 * slot + context), range(count), BLOCK)


def hybrid(folder: Path, coreset: dict[str, Any] | None, **changes: Any) -> LanguageModel:
    config = {**HYBRID, **changes}
    tensors = random_tensors(config)
    return load_model(write(folder, tensors, config | {"expert_coreset": coreset}))


def llada(folder: Path, **changes: Any) -> LanguageModel:
    write_checkpoint(folder, "llada2_moe")
    config = {**CONFIGS["llada2_moe"], "block_size": BLOCK, **changes}
    (folder / "config.json").write_text(json.dumps(config))
    return load_model(folder)


def forward(model: LanguageModel, rounds: Sequence[Sequence[Segment]]) -> Tensor:
    """Logits of the last round."""
    caches = model.new_caches(4, 64)
    for segments in rounds:
        logits = model.forward(RoundBatch.from_segments(segments), caches)
    return logits


PREFILL, SHOWN = segment(Phase.PREFILL, 0, 0, 16), segment(Phase.PREVIEW, 0, 16, 8)
SMALL = {"rule": "max_pool", "capacity": 4}
SMALL_SHARE = {"rule": "top_p", "top_p": 0.3}


def test_blocks_are_numbered_on_each_segments_own_grid() -> None:
    segments = [
        Segment(Phase.PREFILL, 0, 0, [0] * 10, block_length=4),
        Segment(Phase.COMMIT, 1, 6, [0] * 4, block_length=4),
        Segment(Phase.PREVIEW, 1, 10, [0] * 4, block_length=4),
        Segment(Phase.PREVIEW, 2, 0, [0] * 3, block_length=3),
    ]
    batch = RoundBatch.from_segments(segments)
    every = number_blocks(batch, BlockCover.ALL)
    want = [0] * 4 + [1] * 4 + [2] * 2 + [3] * 2 + [4] * 2 + [5] * 4 + [6] * 3
    assert (every.numbers.tolist(), every.count) == (want, 7)
    shown = number_blocks(batch, BlockCover.PREVIEWS)
    assert (shown.numbers.tolist(), shown.count) == ([-1] * 14 + [0] * 4 + [1] * 3, 2)
    writing = RoundBatch.from_segments(segments[:2])
    assert number_blocks(writing, BlockCover.PREVIEWS).count == 0


@pytest.mark.parametrize("model_type", ["clover_moe", "qwen3_5_moe"])
@pytest.mark.parametrize(
    "coreset", [{"rule": "max_pool", "capacity": 12}, {"rule": "top_p", "top_p": 1.0}]
)
def test_a_coreset_of_everything_changes_nothing(
    tmp_path: Path, model_type: str, coreset: dict[str, Any]
) -> None:
    plain = hybrid(tmp_path / "plain", None, model_type=model_type)
    other = hybrid(tmp_path / "other", coreset, model_type=model_type)
    want = forward(plain, [[PREFILL], [SHOWN]])
    torch.testing.assert_close(forward(other, [[PREFILL], [SHOWN]]), want, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("coreset", [SMALL, SMALL_SHARE])
def test_coresets_touch_previews_and_nothing_else(tmp_path: Path, coreset: dict[str, Any]) -> None:
    plain, other = hybrid(tmp_path / "plain", None), hybrid(tmp_path / "other", coreset)
    want = forward(plain, [[PREFILL]])
    torch.testing.assert_close(forward(other, [[PREFILL]]), want, atol=2e-5, rtol=1e-4)
    want = forward(plain, [[PREFILL], [SHOWN]])
    assert (forward(other, [[PREFILL], [SHOWN]]) - want).abs().max() > 0.01


@pytest.mark.parametrize("coreset", [SMALL, SMALL_SHARE])
def test_coresets_of_all_phases_do_not_depend_on_chunks(
    tmp_path: Path, coreset: dict[str, Any]
) -> None:
    every = {**coreset, "phases": "all"}
    model = hybrid(tmp_path, every, block_anchor="zero")
    assert not model.info.supports_autoregressive and not model.info.allows_short_blocks
    whole = forward(model, [[PREFILL], [SHOWN]])
    ids = list(PREFILL.token_ids)
    halves = [
        [Segment(Phase.PREFILL, 0, 0, ids[:8], block_length=BLOCK)],
        [Segment(Phase.PREFILL, 0, 8, ids[8:], block_length=BLOCK)],
    ]
    torch.testing.assert_close(forward(model, [*halves, [SHOWN]]), whole, atol=2e-5, rtol=1e-4)
    previews_only = hybrid(tmp_path / "previews", coreset, block_anchor="zero")
    assert (forward(previews_only, [[PREFILL]]) - forward(model, [[PREFILL]])).abs().max() > 0.01


@pytest.mark.parametrize("coreset", [SMALL, SMALL_SHARE, None])
def test_other_requests_in_the_round_change_nothing(
    tmp_path: Path, coreset: dict[str, Any] | None
) -> None:
    model = hybrid(tmp_path, coreset) if coreset else llada(tmp_path, expert_capacity=3)
    alone = forward(model, [[PREFILL], [SHOWN]])
    others = [segment(Phase.PREFILL, 1, 0, 24), segment(Phase.PREVIEW, 2, 0, 8)]
    caches = [[PREFILL], [others[0], segment(Phase.PREVIEW, 1, 24, 8), SHOWN, others[1]]]
    got = forward(model, caches)[32:40]
    torch.testing.assert_close(got, alone, atol=2e-5, rtol=1e-4)


def test_block_routing_with_all_experts_is_routing_in_one_group(tmp_path: Path) -> None:
    plain = llada(tmp_path / "plain", n_group=1, topk_group=1)
    pools = llada(tmp_path / "pools", expert_capacity=8)
    assert not pools.info.allows_short_blocks
    want = forward(plain, [[PREFILL], [SHOWN]])
    torch.testing.assert_close(forward(pools, [[PREFILL], [SHOWN]]), want, atol=2e-5, rtol=1e-4)
    narrow = llada(tmp_path / "narrow", expert_capacity=2)
    assert (forward(narrow, [[PREFILL]]) - forward(plain, [[PREFILL]])).abs().max() > 0.01


def test_routed_blocks_have_one_length(tmp_path: Path) -> None:
    model = llada(tmp_path, expert_capacity=3)
    with pytest.raises(RequestError, match="block_length: 4 does not work.*; allowed: 8"):
        Engine(model, EngineConfig(max_slots=1)).add_request(request(block_length=4))
    line = {"phase": "preview", "prefix_ids": [1] * 8, "block_length": 4}
    with pytest.raises(RequestError, match=r"block_length is 4; this model allows \[8\]"):
        parse_request(line, model.info, model.formulation)


@pytest.mark.parametrize("kind", ["llada", "edited", "hybrid"])
def test_tokens_do_not_depend_on_the_batch_or_the_budget(tmp_path: Path, kind: str) -> None:
    tokens = {"delete_token_id": 29, "split_token_id": 30} if kind == "edited" else {}
    if kind == "hybrid":
        model = hybrid(tmp_path, SMALL)
    else:
        model = llada(tmp_path, expert_capacity=3, **tokens)
    rules = {"threshold": 0.2, "editing_threshold": 0.05 if kind == "edited" else None}
    wanted = [
        request(uid, rows(5 + 9 * uid, uid), max_tokens=13, ignore_eos=True, **rules)
        for uid in range(3)
    ]
    together = run(Engine(model, EngineConfig(max_slots=3, prefill_token_budget=16)), wanted)
    for one in wanted:
        alone = run(Engine(model, EngineConfig(max_slots=1)), [one])[one.uid]
        assert output_ids(alone) == output_ids(together[one.uid])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, "expert_coreset is 5"),
        (0.0, "expert_coreset is 0.0"),
        ({}, "expert_coreset.rule is missing; it must be one of"),
        ({"rule": "largest"}, "expert_coreset.rule is 'largest'"),
        ({"rule": "max_pool"}, "capacity is missing; it must be an integer from 3 to 12"),
        ({"rule": "max_pool", "capacity": 2}, "expert_coreset.capacity is 2; .* from 3 to 12"),
        ({"rule": "max_pool", "capacity": 13}, "expert_coreset.capacity is 13"),
        ({"rule": "max_pool", "capacity": 4, "top_p": 0.5}, "expert_coreset.top_p is 0.5"),
        ({"rule": "top_p"}, "expert_coreset.top_p is missing"),
        ({"rule": "top_p", "top_p": 0}, "expert_coreset.top_p is 0"),
        ({"rule": "top_p", "top_p": 1.5}, "expert_coreset.top_p is 1.5"),
        ({"rule": "top_p", "top_p": 0.5, "phases": "commit"}, "expert_coreset.phases is 'commit'"),
        ({"rule": "top_p", "top_p": 0.5, "phases": "all"}, "unless block_anchor is 'zero'"),
    ],
)
def test_refused_coresets(value: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        parse_config({**HYBRID, "expert_coreset": value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, False, 0])
def test_no_coreset(value: object) -> None:
    config = parse_config({**HYBRID, "expert_coreset": value})
    assert getattr(config, "coreset", 1) is None
