"""Requests that do not end by themselves (cancelled, out of time, failed) free their slot."""

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from blockdiff.core import BlockResult, FinishReason, Mode
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import CapacityError, EngineDeadError, RequestError

from .fakes import EOS, MASK, Array, HashModel, ScriptModel, ids, request, run

# What runs when the request is ended after so many rounds: a prompt of 20 tokens takes 4.
PHASES = {"admitted": 0, "prefill": 2, "first_block": 5, "riding_commit": 7, "later": 9}


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("rounds", PHASES.values(), ids=PHASES)
def test_cancel_frees_the_slot_at_once_in_every_phase(rounds: int, mode: Mode) -> None:
    model = HashModel()
    fields: dict[str, Any] = {"max_tokens": 16, "ignore_eos": True, "mode": mode}
    if mode is Mode.DIFFUSION:
        fields["denoise_steps"] = 3
    wanted = [request(uid, [7 + uid] * 20, **fields) for uid in (1, 2)]
    alone = ids(run(Engine(model), [wanted[1]])[2])
    engine = Engine(model, EngineConfig(max_slots=2, prefill_token_budget=10))
    results: list[BlockResult] = []
    for one in wanted:
        engine.add_request(one)
    for _ in range(rounds):
        results += engine.step()
    engine.cancel(1)
    assert engine.free_slots == 1 and engine.has_work
    engine.cancel(1)
    results += engine.step()
    own = [result for result in results if result.request_uid == 1]
    assert [result.is_final for result in own] == [False] * (len(own) - 1) + [True]
    assert own[-1].finish_reason is FinishReason.CANCELLED and own[-1].forwards is not None
    # The other request is not disturbed, and the slot can be used again.
    again = request(3, [9] * 20, **fields)
    engine.add_request(again)
    while engine.has_work:
        results += engine.step()
    assert ids([result for result in results if result.request_uid == 2]) == alone
    assert ids([r for r in results if r.request_uid == 3]) == ids(run(Engine(model), [again])[3])
    assert engine.free_slots == 2


def test_a_cancelled_block_hands_out_its_settled_tokens() -> None:
    order = {3: 0.8, 4: 0.7, 5: 0.5, 6: 0.6}
    model = ScriptModel([1, 1, 1, 7, 8, 9, 10], lambda position: order.get(position, 0.5))
    engine = Engine(model)
    engine.add_request(request(max_tokens=8))
    for _ in range(3):
        assert engine.step() == []
    engine.cancel(1)
    result = engine.step()[0]
    # Position 6 is accepted too, but position 5 before it is not.
    assert result.token_ids == (7, 8) and len(result.log_probs) == 2


def test_cancelling_what_does_not_run_does_nothing() -> None:
    engine = Engine(HashModel())
    engine.cancel(99)
    assert not engine.has_work and engine.step() == []


def test_a_deadline_ends_a_request_wherever_it_is() -> None:
    engine = Engine(HashModel(), EngineConfig(max_slots=2))
    now = time.monotonic()
    engine.add_request(request(1, max_tokens=40, ignore_eos=True, deadline=now - 1))
    engine.add_request(request(2, max_tokens=4, deadline=now + 100))
    results = engine.step()
    assert [(r.request_uid, r.finish_reason) for r in results if r.is_final] == [
        (1, FinishReason.TIMEOUT)
    ]
    assert results[0].token_ids == () and engine.free_slots == 1
    while engine.has_work:
        results += engine.step()
    assert results[-1].request_uid == 2 and results[-1].finish_reason is FinishReason.LENGTH


def fail_round(number: int) -> None:
    raise RuntimeError("device\nlost")


def test_a_failing_round_fails_its_requests_and_no_others() -> None:
    model = HashModel()
    engine = Engine(model, EngineConfig(max_slots=2))

    engine.add_request(request(1, max_tokens=40, ignore_eos=True, denoise_steps=4))
    engine.step()
    engine.add_request(request(2))
    model.before_round = fail_round
    results = engine.step()
    assert {r.request_uid for r in results} == {1, 2}
    assert all(r.is_final and r.error and "device lost" in r.error for r in results)
    assert engine.free_slots == 2
    model.before_round = lambda number: None
    assert ids(run(engine, [request(3)])[3]) == ids(run(Engine(model), [request(3)])[3])


def test_failing_again_and_again_is_death_and_loses_no_result() -> None:
    model = HashModel()
    engine = Engine(model)

    model.before_round = fail_round
    for uid in (1, 2):
        engine.add_request(request(uid))
        assert engine.step()[0].error
    engine.add_request(request(3))
    engine.add_request(request(4))
    engine.cancel(4)
    with pytest.raises(EngineDeadError, match="3 rounds failed"):
        engine.step()
    assert [r.request_uid for r in engine.fail_all("dead")] == [4, 3]


def test_failing_now_and_then_is_not_death() -> None:
    model = HashModel()
    engine = Engine(model)
    for uid in range(8):
        model.before_round = fail_round if uid % 2 else lambda number: None
        engine.add_request(request(uid, max_tokens=2, threshold=0.0))
        assert bool(engine.step()[0].error) == bool(uid % 2)


def test_output_that_is_not_finite_fails_only_that_request() -> None:
    class Poisoned(HashModel):
        def rows(self, prefix: Sequence[int], seen: Sequence[int], is_preview: bool) -> Array:
            answers = super().rows(prefix, seen, is_preview)
            return answers * (float("nan") if 13 in [*prefix, *seen][:1] else 1)

    model = Poisoned()
    results = run(Engine(model), [request(1, [13]), request(2, [14])])
    assert results[1][-1].error == "the model's output is not finite"
    assert ids(results[2]) == ids(run(Engine(model), [request(2, [14])])[2])


def test_no_slot_and_repeated_uids_are_refused() -> None:
    engine = Engine(HashModel(), EngineConfig(max_slots=1))
    engine.add_request(request(1))
    with pytest.raises(CapacityError, match="retry"):
        engine.add_request(request(2))
    with pytest.raises(RequestError, match="uid: 1"):
        engine.add_request(request(1))


def test_warm_up_runs_every_kind_of_round_and_leaves_no_trace() -> None:
    model = HashModel()
    engine = Engine(model, EngineConfig(max_slots=3, prefill_token_budget=16))
    engine.warm_up()
    kinds = {tuple(sorted({phase for phase, _, _ in round_})) for round_ in model.rounds}
    assert {(0, 1), (1, 2), (2,)} <= kinds
    assert engine.free_slots == 3 and engine.counters.rounds == 0 and not engine.has_work
    assert ids(run(engine, [request(1)])[1]) == ids(run(Engine(model), [request(1)])[1])

    def fail(number: int) -> None:
        raise RuntimeError("no kernel")

    broken = HashModel()
    broken.before_round = fail
    with pytest.raises(EngineDeadError, match="no kernel"):
        Engine(broken).warm_up()


def test_thread_count_is_applied() -> None:
    before = torch.get_num_threads()
    try:
        Engine(HashModel(), EngineConfig(num_threads=1))
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("ignores", [False, True])
def test_stop_ids_end_besides_the_end_tokens_of_the_model(ignores: bool) -> None:
    def ended(script: list[int], **fields: Any) -> tuple[list[int], str]:
        engine = Engine(ScriptModel([7, 7, 7, *script, *[8] * 20]))
        wanted = request(1, max_tokens=8, threshold=0.5, ignore_eos=ignores, **fields)
        blocks = run(engine, [wanted])[1]
        return ids(blocks), blocks[-1].stop_reason

    assert ended([8, 5, EOS, 8], stop_ids=(5,)) == ([8, 5], "5")
    output, why = ended([8, EOS, 5, 8], stop_ids=(5, 4))
    assert (output, why) == (([8, EOS, 5], "5") if ignores else ([8, EOS], str(EOS)))
    output, why = ended([8, 5, 8, 8, 8, 5, 8, 8], stop_ids=(5,), min_tokens=4)
    assert 5 not in output[:4] and why in ("5", "")
    with pytest.raises(RequestError, match="stop_token_ids: 17 ids given; at most 16"):
        ended([8], stop_ids=tuple(range(17)))
    with pytest.raises(RequestError, match="stop_token_ids: .* is the mask token"):
        ended([8], stop_ids=(MASK,))
    if not ignores:
        with pytest.raises(RequestError, match="17 ids with the model's own; at most 16"):
            ended([8], stop_ids=tuple(range(16)))
