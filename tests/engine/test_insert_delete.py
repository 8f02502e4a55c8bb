"""Insert and delete editing in the engine against its plain twin, and by hand-written scripts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from blockdiff.core import FinishReason
from blockdiff.engine import Engine
from blockdiff.errors import RequestError, UnsupportedError

from .edit_models import CONTROLS, DELETE, SPLIT, EditModel, Scripted, engine, numbered
from .edited_block import decode_edited
from .fakes import EOS, MASK, Array, HashModel, ids, request, run

rules = st.fixed_dictionaries(
    {
        "threshold": st.sampled_from([0.0, 0.3, 0.7, 0.95]),
        "editing_threshold": st.sampled_from([0.0, 0.2, 0.6, 0.95]),
        "max_post_steps": st.sampled_from([None, 0, 1, 2, 5, 16]),
        "num_to_transfer": st.integers(1, 2),
        "block_length": st.sampled_from([2, 3, 4, 8]),
        "max_tokens": st.integers(1, 12),
        "min_tokens": st.sampled_from([0, 0, 1]),
        "ignore_eos": st.booleans(),
    }
)


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    st.lists(rules, min_size=1, max_size=6),
    st.sampled_from([0.0, 4.0, 12.0]),
    st.sampled_from([1, 2, 5, 10**6]),
    st.integers(1, 4),
)
def test_requests_in_one_batch_follow_the_twin(
    every: list[dict[str, Any]], control: float, variants: int, slots: int
) -> None:
    requests = [numbered(uid, **fields) for uid, fields in enumerate(every)]
    results = run(engine(EditModel(control, variants), slots), requests)
    for wanted in requests:
        tokens, log_probs, steps, _ = decode_edited(EditModel(control, variants), wanted)
        blocks = results[wanted.uid]
        assert ids(blocks) == tokens
        assert [block.denoise_steps for block in blocks] == steps
        got = [x for block in blocks for x in block.log_probs]
        np.testing.assert_allclose(got, log_probs, atol=1e-4)
        assert not CONTROLS & set(tokens)
        length, post = wanted.decoding.block_length, wanted.decoding.max_post_steps
        assert max(steps) <= length + (16 if post is None else post) + 1


def test_a_request_without_editing_has_the_same_bits_beside_one_with_it() -> None:
    plain = request(1, range(5), max_tokens=24, threshold=0.3, block_length=8, ignore_eos=True)
    edited = numbered(2, max_tokens=24, editing_threshold=0.2, block_length=8)
    alone = run(engine(EditModel(4.0, 10**6), 1), [plain])[1]
    assert run(engine(EditModel(4.0, 10**6), 2), [plain, edited])[1] == alone


def expected() -> list[dict[str, Any]]:
    """Outputs of JointThresholdInDel of sglang 0.5.23, run by itself on logits of ``EditModel``."""
    cases: list[dict[str, Any]] = json.loads(
        (Path(__file__).parent / "data" / "insert_delete.json").read_text("utf-8")
    )
    return cases


@pytest.mark.parametrize("case", expected(), ids=lambda case: str(case["uid"]))
def test_outputs_and_previews_are_the_references(case: dict[str, Any]) -> None:
    model = EditModel(case["control"], case["variants"])
    blocks = run(engine(model, 1), [numbered(case["uid"], **case["fields"])])[case["uid"]]
    assert ids(blocks) == case["output_ids"]
    assert [block.denoise_steps for block in blocks] == case["previews"]


def test_the_twin_meets_every_rule() -> None:
    """What the comparison above covers, so that it cannot become empty."""
    events: set[str] = set()
    for uid in range(40):
        wanted = numbered(uid, block_length=8, min_tokens=uid % 5, max_post_steps=uid % 20)
        events |= set(decode_edited(EditModel(12.0, 2), wanted)[3])
    assert events >= {
        "scrubbed", "loop", "deleted", "inserted", "masked", "kept", "cut", "too early"
    }  # fmt: skip


M, D, S = MASK, DELETE, SPLIT


def script(answers: dict[tuple[int, ...], Sequence[int]], **fields: Any) -> tuple[Any, Scripted]:
    """Result blocks of one request, prompt of a whole block, and the model with what it saw."""
    model = Scripted({(M,) * 4: (10, 11, 12, 13), **answers})
    usual = {"prompt": (1, 2, 3, 4), "max_tokens": 4, "threshold": 0.5, "editing_threshold": 0.5}
    return run(engine(model), [request(**{**usual, **fields})])[1], model


def test_a_deletion_moves_what_follows_and_opens_the_end() -> None:
    blocks, model = script({(10, 11, 12, 13): (10, D, 12, 13), (10, 12, 13, M): (10, 12, 13, 14)})
    assert ids(blocks) == [10, 12, 13, 14]
    assert model.shown == [[M] * 4, [10, 11, 12, 13], [10, 12, 13, M], [10, 12, 13, 14]]


def test_an_insertion_comes_before_its_token_and_cuts_the_end() -> None:
    blocks, model = script({(10, 11, 12, 13): (10, S, 12, 13), (10, M, 11, 12): (10, 9, 11, 12)})
    assert ids(blocks) == [10, 9, 11, 12]
    assert model.shown[2] == [10, M, 11, 12]


def test_an_insertion_at_the_last_place_drops_its_token() -> None:
    blocks, model = script({(10, 11, 12, 13): (10, 11, 12, S), (10, 11, 12, M): (10, 11, 12, 9)})
    assert ids(blocks) == [10, 11, 12, 9]
    assert model.shown[2] == [10, 11, 12, M]


def test_many_edits_at_once() -> None:
    answers = {(10, 11, 12, 13): (D, S, D, S), (M, 11, M, 13): (7, 11, 8, 13)}
    assert ids(script(answers)[0]) == [7, 11, 8, 13]


def test_a_prompt_in_the_block_stays_where_it_is() -> None:
    answers = {
        (1, D, M, M): (D, S, 20, 21),
        (1, D, 20, 21): (S, D, S, 21),
        (1, D, M, 20): (D, D, 22, 20),
    }
    blocks, model = script(answers, prompt=(1, D), max_tokens=2)
    assert ids(blocks) == [22, 20]
    assert all(shown[:2] == [1, D] for shown in model.shown)


def test_an_end_moved_by_a_deletion_cuts_there() -> None:
    answers = {
        (M,) * 4: (10, 11, 12, EOS),
        (10, 11, 12, EOS): (10, D, 12, EOS),
        (10, 12, EOS, M): (10, 12, EOS, 15),
    }
    blocks, _ = script(answers, max_tokens=20)
    assert ids(blocks) == [10, 12, EOS]
    assert blocks[-1].finish_reason is FinishReason.STOP


def test_an_end_moved_before_min_tokens_is_decided_again() -> None:
    answers = {
        (M,) * 4: (10, 11, 12, EOS),
        (10, 11, 12, EOS): (10, D, 12, EOS),
        (10, 12, M, M): (10, 12, 16, EOS),
    }
    assert ids(script(answers, min_tokens=3, max_tokens=8)[0]) == [10, 12, 16, EOS]


def test_an_inserted_token_may_push_the_end_beyond_the_limit() -> None:
    answers = {
        (M,) * 4: (10, 11, EOS, 13),
        (10, 11, EOS, 13): (10, S, EOS, 13),
        (10, M, 11, EOS): (10, 9, 11, EOS),
    }
    blocks, _ = script(answers, max_tokens=3)
    assert ids(blocks) == [10, 9, 11]
    assert blocks[-1].finish_reason is FinishReason.LENGTH


# the second time round the loop is left, so the last number does not grow
@pytest.mark.parametrize(("post", "previews"), [(0, 1), (1, 2), (2, 3), (7, 4), (16, 4)])
def test_endless_edits_are_cut_off_without_control_tokens(post: int, previews: int) -> None:
    answers = {(10, 11, 12, 13): (D, D, D, D), (M,) * 4: (10, 11, 12, 13)}
    blocks, model = script(answers, max_post_steps=post, max_tokens=4)
    assert not CONTROLS & set(ids(blocks)) and len(ids(blocks)) == 4
    assert len(model.shown) == previews


def test_a_loop_is_left_by_another_token() -> None:
    answers = {(10, 11, 12, 13): (10, 20, 12, 13), (10, 20, 12, 13): (10, 11, 12, 13)}
    blocks, model = script(answers, max_post_steps=16)
    # the third time round neither 11 nor 20 may be written at this place again
    assert model.shown[:4] == [[M] * 4, [10, 11, 12, 13], [10, 20, 12, 13], [10, 11, 12, 13]]
    assert model.shown[4][1] not in (11, 20)
    assert len(ids(blocks)) == 4


def test_a_wider_block_that_joins_hides_no_loop() -> None:
    answers = {(10, 11, 12, 13): (10, 20, 12, 13), (10, 20, 12, 13): (10, 11, 12, 13)}
    alone, model = script(answers)
    runner = engine(Scripted(model.answers), 2)
    rules = {"threshold": 0.5, "editing_threshold": 0.5}
    runner.add_request(request(1, (1, 2, 3, 4), max_tokens=4, **rules))
    results = [*runner.step(), *runner.step()]
    runner.add_request(request(2, (1,) * 8, block_length=8, max_tokens=8, **rules))
    while runner.has_work:
        results += runner.step()
    joined = [result for result in results if result.request_uid == 1]
    assert ids(joined) == ids(alone)
    assert joined[0].denoise_steps == alone[0].denoise_steps


def test_cancelled_in_the_middle() -> None:
    model = EditModel(4.0, 5)
    runner = engine(model, 2)
    runner.add_request(numbered(1, max_tokens=20, max_post_steps=16))
    runner.add_request(numbered(2, max_tokens=9))
    runner.step()
    runner.cancel(1)
    results = [result for _ in range(200) for result in runner.step()]
    cancelled = [result for result in results if result.request_uid == 1]
    assert [result.token_ids for result in cancelled] == [()]
    # the slot's memory of the cancelled block does not reach the next request
    again = run(runner, [numbered(3, max_tokens=9)])[3]
    assert ids(again) == decode_edited(model, numbered(3, max_tokens=9))[0]
    other = [result for result in results if result.request_uid == 2]
    assert ids(other) == decode_edited(model, numbered(2, max_tokens=9))[0]


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0}, {"denoise_steps": 2}])
def test_control_tokens_are_never_output_without_editing(fields: dict[str, Any]) -> None:
    blocks = run(engine(EditModel(12.0, 5)), [request(max_tokens=24, ignore_eos=True, **fields)])[1]
    assert len(ids(blocks)) == 24 and not CONTROLS & set(ids(blocks))


def test_editing_and_sampling_share_rounds() -> None:
    requests = [numbered(1), request(2, temperature=1.0, seed=5), numbered(3, block_length=8)]
    together = run(engine(EditModel(4.0, 5)), requests)
    for wanted in requests:
        alone = run(engine(EditModel(4.0, 5)), [wanted])[wanted.uid]
        assert ids(alone) == ids(together[wanted.uid])


def test_broken_logits_fail_one_request() -> None:
    class Broken(EditModel):
        def rows(self, prefix: Sequence[int], seen: Sequence[int], is_preview: bool) -> Array:
            rows = super().rows(prefix, seen, is_preview)
            return rows * np.nan if is_preview and len(seen) == 8 else rows

    results = run(engine(Broken(4.0, 5)), [numbered(1), numbered(2, block_length=8)])
    assert results[2][-1].error == "the model's output is not finite"
    assert ids(results[1]) == decode_edited(EditModel(4.0, 5), numbered(1))[0]


@pytest.mark.parametrize("token", [MASK, DELETE, SPLIT])
def test_a_control_token_is_no_end(token: int) -> None:
    with pytest.raises(RequestError, match=f"eos_ids: {token} is .* token; it is never produced"):
        engine(EditModel(0.0, 1)).validate(request(eos_ids=(token,)))


def test_models_without_editing_refuse() -> None:
    with pytest.raises(UnsupportedError, match="editing_threshold"):
        Engine(HashModel()).validate(numbered(1))
