"""Whole requests through the engine, against the definition in ``fakes.decode_alone``."""

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from blockdiff.core import FinishReason, Mode, Phase, Request
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import ConfigError
from blockdiff.models.base import ModelCaches, RoundBatch
from blockdiff.transfer import fetch_packed, move_packed

from .fakes import EOS, MASK, VOCAB, HashModel, ScriptModel, decode_alone, ids, info, request, run

MODES: list[dict[str, Any]] = [
    {"threshold": 0.5},
    {"denoise_steps": 3},
    {"denoise_steps": 2, "threshold": 0.6},
    {"mode": Mode.AUTOREGRESSIVE},
]
MODE_NAMES = ["threshold", "steps", "both", "autoregressive"]


@st.composite
def requests(draw: st.DrawFn, uid: int) -> Request:
    length = draw(st.sampled_from([2, 4, 8]))
    max_tokens = draw(st.integers(1, 14))
    fields: dict[str, Any] = {
        "block_length": length,
        "max_tokens": max_tokens,
        "min_tokens": draw(st.integers(0, max_tokens)),
        "ignore_eos": draw(st.booleans()),
        "eos_ids": draw(st.sampled_from([None, (), (1, 2, 3, 4, 5, 6, 7)])),
    }
    kind = draw(st.sampled_from(MODE_NAMES))
    if kind == "autoregressive":
        fields["mode"] = Mode.AUTOREGRESSIVE
    if kind in ("threshold", "both"):
        fields["threshold"] = draw(st.sampled_from([0.2, 0.5, 0.9]))
    if kind in ("steps", "both"):
        fields["denoise_steps"] = draw(st.integers(1, length))
    prompt = draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20))
    return request(uid, prompt, **fields)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_mix_of_requests_gives_what_each_gives_alone(data: st.DataObject) -> None:
    anchor = data.draw(st.sampled_from(["prompt_end", "zero"]))
    model = HashModel(info(block_anchor=anchor))
    wanted = [data.draw(requests(uid)) for uid in range(data.draw(st.integers(1, 5)))]
    config = EngineConfig(
        max_slots=data.draw(st.integers(1, 4)), prefill_token_budget=data.draw(st.integers(1, 30))
    )
    engine = Engine(model, config)
    results = run(engine, wanted)
    for one in wanted:
        output, steps = decode_alone(model, one)
        blocks = results[one.uid]
        assert ids(blocks) == output
        assert [block.block_index for block in blocks] == list(range(len(blocks)))
        if one.decoding.mode is Mode.DIFFUSION:
            # Only the last block can end before all its positions are decided.
            got = [block.denoise_steps for block in blocks]
            assert got[:-1] == steps[: len(got) - 1] and got[-1] <= steps[len(got) - 1]
    assert engine.free_slots == config.max_slots


@pytest.mark.parametrize("fields", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("anchor", ["prompt_end", "zero"])
def test_every_max_tokens_is_exact(fields: dict[str, Any], anchor: str) -> None:
    model = HashModel(info(block_anchor=anchor))
    engine = Engine(model, EngineConfig(max_slots=4))
    wanted = [
        request(n, [5, 6], max_tokens=n, ignore_eos=True, **fields) for n in range(1, 3 * 4 + 2)
    ]
    for uid, blocks in run(engine, wanted).items():
        assert len(ids(blocks)) == uid
        assert blocks[-1].finish_reason is FinishReason.LENGTH
        assert ids(blocks) == decode_alone(model, wanted[uid - 1])[0]


@pytest.mark.parametrize("fields", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("eos_at", range(9))
def test_nothing_comes_after_eos(fields: dict[str, Any], eos_at: int) -> None:
    script = [10 + place for place in range(20)]
    script[3 + eos_at] = EOS
    script[3 + 9] = EOS
    engine = Engine(ScriptModel(script), EngineConfig(max_slots=1))
    blocks = run(engine, [request(max_tokens=12, **fields)])[1]
    assert ids(blocks) == script[3 : 3 + eos_at + 1]
    assert blocks[-1].finish_reason is FinishReason.STOP
    assert blocks[-1].stop_reason == str(EOS)


def test_settled_eos_ends_the_block_early_and_an_unsettled_one_does_not() -> None:
    # Position 5 (third of the block) is EOS and sure; the others fall one per step.
    order = {3: 0.8, 4: 0.7, 5: 0.99, 6: 0.6}
    model = ScriptModel([1, 1, 1, 7, 8, EOS, 9], lambda position: order.get(position, 0.5))
    engine = Engine(model, EngineConfig(max_slots=1))
    blocks = run(engine, [request(max_tokens=4)])[1]
    # EOS first, then both positions before it; the one behind it is never decided.
    assert ids(blocks) == [7, 8, EOS]
    assert blocks[0].denoise_steps == 3


def test_eos_beyond_max_tokens_is_no_ending() -> None:
    script = [1, 1, 1, 7, 8, EOS, 9]
    blocks = run(Engine(ScriptModel(script)), [request(max_tokens=2)])[1]
    assert ids(blocks) == [7, 8] and blocks[-1].finish_reason is FinishReason.LENGTH


def test_the_last_block_ends_as_soon_as_the_wanted_positions_are_settled() -> None:
    order = {3: 0.8, 4: 0.7, 5: 0.6, 6: 0.5}
    model = ScriptModel([1, 1, 1, 7, 8, 9, 10], lambda position: order.get(position, 0.5))
    blocks = run(Engine(model), [request(max_tokens=2)])[1]
    assert ids(blocks) == [7, 8] and blocks[0].denoise_steps == 2


@pytest.mark.parametrize("fields", MODES, ids=MODE_NAMES)
def test_min_tokens_keeps_eos_away(fields: dict[str, Any]) -> None:
    engine = Engine(ScriptModel([EOS]), EngineConfig(max_slots=1))
    for uid, least in enumerate((0, 1, 4, 5, 8)):
        blocks = run(engine, [request(uid, min_tokens=least, max_tokens=8, **fields)])[uid]
        output = ids(blocks)
        assert EOS not in output[:least] and len(output) == min(least + 1, 8)


@pytest.mark.parametrize("fields", MODES, ids=MODE_NAMES)
def test_the_mask_id_is_never_produced(fields: dict[str, Any]) -> None:
    engine = Engine(ScriptModel([MASK]), EngineConfig(max_slots=1))
    assert MASK not in ids(run(engine, [request(max_tokens=9, **fields)])[1])


@pytest.mark.parametrize("anchor", ["prompt_end", "zero"])
def test_mask_and_eos_ids_in_the_prompt_are_just_tokens(anchor: str) -> None:
    model = HashModel(info(block_anchor=anchor))
    wanted = [
        request(uid, [MASK, EOS, 1, MASK, EOS, MASK][: uid + 1], max_tokens=9) for uid in range(6)
    ]
    for uid, blocks in run(Engine(model), wanted).items():
        assert ids(blocks) == decode_alone(model, wanted[uid])[0]


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_commit_rides_along_and_the_last_block_has_none(steps: int) -> None:
    model = HashModel()
    engine = Engine(model, EngineConfig(max_slots=1))
    blocks = run(engine, [request(max_tokens=16, ignore_eos=True, denoise_steps=steps)])[1]
    forwards = blocks[-1].forwards
    assert forwards is not None
    assert [block.denoise_steps for block in blocks] == [steps] * 4
    assert (forwards.prefill, forwards.preview) == (1, 4 * steps)
    assert (forwards.commit, forwards.commit_fused) == (0, 3)
    # Nothing but previews costs a round: the prompt and all commits ride along.
    assert len(model.rounds) == 4 * steps
    assert sum(phase == Phase.COMMIT for round_ in model.rounds for phase, _, _ in round_) == 3


def test_autoregressive_costs_one_commit_per_token_but_the_last() -> None:
    model = HashModel()
    wanted = request(max_tokens=10, ignore_eos=True, mode=Mode.AUTOREGRESSIVE)
    blocks = run(Engine(model), [wanted])[1]
    forwards = blocks[-1].forwards
    assert forwards is not None
    assert (forwards.prefill, forwards.preview, forwards.commit) == (1, 0, 9)
    assert [len(block.token_ids) for block in blocks] == [4, 4, 2]
    assert len(model.rounds) == 10


@pytest.mark.parametrize("fields", MODES, ids=MODE_NAMES)
def test_sampled_output_depends_on_request_and_seed_only(fields: dict[str, Any]) -> None:
    model = HashModel()
    choice = {"temperature": 1.5, "top_k": 20, "top_p": 0.95, "max_tokens": 9, "ignore_eos": True}
    wanted = [request(uid, [uid % 3 + 1, 2], seed=uid // 3, **choice, **fields) for uid in range(9)]
    alone = {
        one.uid: ids(run(Engine(model, EngineConfig(max_slots=1)), [one])[one.uid])
        for one in wanted
    }
    mixed = run(Engine(model, EngineConfig(max_slots=4, prefill_token_budget=3)), wanted[::-1])
    assert {uid: ids(blocks) for uid, blocks in mixed.items()} == alone
    assert alone[0] != alone[3] and alone[3] != alone[6]


def test_log_probs_are_those_of_the_chosen_tokens() -> None:
    model = ScriptModel([7], lambda position: 0.75)
    for fields in MODES:
        blocks = run(Engine(model), [request(max_tokens=6, **fields)])[1]
        for block in blocks:
            assert block.log_probs == pytest.approx([math.log(0.75)] * len(block.token_ids))


def test_tiles_of_logits_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HashModel()
    fields = {"max_tokens": 12, "min_tokens": 5, "top_k": 7}
    wanted = [request(uid, [uid + 1], temperature=uid % 2, **fields) for uid in range(6)]
    whole = run(Engine(model), wanted)
    for name in ("GREEDY_TILE", "SAMPLED_TILE"):
        monkeypatch.setattr(f"blockdiff.engine.forward.{name}", 3 * VOCAB)
    sizes: list[int] = []
    monkeypatch.setattr(model, "head", lambda rows: sizes.append(len(rows)) or rows.clone())
    tiled = run(Engine(model), wanted)
    assert max(sizes) == 3, "more logits at one time than a tile holds"
    assert {uid: ids(blocks) for uid, blocks in tiled.items()} == {
        uid: ids(blocks) for uid, blocks in whole.items()
    }


def test_packed_transfers_give_the_same_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HashModel()
    wanted = [request(uid, [uid + 1], temperature=uid % 2, max_tokens=9) for uid in range(4)]
    direct = run(Engine(model), wanted)
    monkeypatch.setattr("blockdiff.engine.row_rules.to_device", move_packed)
    monkeypatch.setattr("blockdiff.engine.forward.fetch", fetch_packed)
    assert run(Engine(model), wanted) == direct


@pytest.mark.parametrize(("anchor", "last"), [("prompt_end", 2), ("zero", 1)])
def test_a_truncated_last_block_has_only_the_rows_it_needs(anchor: str, last: int) -> None:
    grids = set()

    class Noting(HashModel):
        def hidden(self, batch: RoundBatch, caches: ModelCaches) -> Tensor:
            grids.update(batch.block_lengths.tolist())
            return super().hidden(batch, caches)

    model = Noting(info(block_anchor=anchor))
    wanted = request(prompt=[1, 2, 3], max_tokens=6, ignore_eos=True, denoise_steps=4)
    rows = {}
    for truncates in (False, True):
        model.rounds.clear()
        blocks = run(Engine(model, EngineConfig(truncate_last_block=truncates)), [wanted])[1]
        assert ids(blocks) == decode_alone(model, wanted, truncates)[0]
        rows[truncates] = {round_[-1] for round_ in model.rounds[-blocks[-1].denoise_steps :]}
    assert rows == {False: {(Phase.PREVIEW, 0, 4)}, True: {(Phase.PREVIEW, 0, last)}}
    # the commit that rides along with the short block goes by the grid of whole ones
    assert grids == {4}


def test_models_of_whole_blocks_refuse_to_truncate() -> None:
    model = HashModel(info(allows_short_blocks=False))
    with pytest.raises(ConfigError, match="truncate_last_block: .* leave it off"):
        Engine(model, EngineConfig(truncate_last_block=True))
