"""Sequential and entropy-bounded acceptance and token editing, against plain definitions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from blockdiff.core import Mode
from blockdiff.decoding.acceptance import ALGORITHMS, accept, accept_by
from blockdiff.decoding.sampling import entropies
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import RequestError

from .fakes import MASK, HashModel, ids, info, request, run, softmax

EVERY = {"algorithms": ALGORITHMS, "supports_editing": True, "block_anchor": "zero"}


def engine(slots: int = 3) -> Engine:
    return Engine(HashModel(info(**EVERY)), EngineConfig(max_slots=slots, max_context=64))


def decode(
    model: HashModel,
    prompt: Sequence[int],
    blocks: int,
    pins: dict[int, int] | None = None,
    **rules: Any,
) -> list[int]:
    """Whole blocks, one request by itself, straight from the rules; returns the response.

    ``pins``: given tokens by place of the response.
    """
    given = {len(prompt) + place: token for place, token in (pins or {}).items()}
    final, length = list(prompt), model.info.block_length
    for number in range(len(prompt) // length, len(prompt) // length + blocks):
        prefix, fixed = final[: number * length], final[number * length :]
        fixed += [given.get(p, MASK) for p in range(len(final), (number + 1) * length)]
        free = [p for p in range(len(final) - len(prefix), length) if len(prefix) + p not in given]
        canvas, masked = fixed, list(free)
        post = 0
        while True:
            if not masked:
                post += 1
                if "editing_threshold" not in rules or post > rules["max_post_steps"]:
                    break
            rows = [softmax(row) for row in model.rows(prefix, canvas, True)]
            picks = [int(np.delete(row, MASK).argmax()) for row in rows]
            sure = [float(rows[place][picks[place]]) for place in range(length)]
            taken = choose(rules, rows, sure, masked)
            edits = []
            if "editing_threshold" in rules:
                for place in free:
                    is_new = picks[place] != canvas[place] and place not in masked
                    if is_new and sure[place] > rules["editing_threshold"]:
                        edits.append(place)
            is_confirmed = not masked and not edits
            for place in [*taken, *edits]:
                canvas[place] = picks[place]
            masked = [place for place in masked if place not in taken]
            if is_confirmed:
                break
        final = prefix + canvas
    return final[len(prompt) :]


def choose(
    rules: dict[str, Any], rows: list[Any], sure: list[float], masked: list[int]
) -> list[int]:
    least = rules.get("num_to_transfer", 1)
    if rules.get("algorithm") == "sequential":
        return masked[:least]
    if rules.get("algorithm") == "entropy_bounded":
        spread = {p: float(-(rows[p] * np.log(rows[p] + 1e-300)).sum()) for p in masked}
        order = sorted(masked, key=lambda p: spread[p])
        sums = np.cumsum([spread[p] for p in order])
        return order[: max(int((sums < rules["entropy_bound"]).sum()), 1)]
    above = [p for p in masked if sure[p] > rules["threshold"]]
    return above if len(above) >= least else sorted(masked, key=lambda p: -sure[p])[:least]


RULES: list[dict[str, Any]] = [
    {"algorithm": "sequential"},
    {"algorithm": "entropy_bounded", "entropy_bound": 0.0},
    {"algorithm": "entropy_bounded", "entropy_bound": 1.5},
    {"algorithm": "entropy_bounded", "entropy_bound": 100.0},
    {"threshold": 0.6},
    {"threshold": 0.6, "editing_threshold": 0.2, "max_post_steps": 3},
    {"threshold": 0.3, "editing_threshold": 0.0, "max_post_steps": 0},
    {"threshold": 0.9, "editing_threshold": 0.4, "max_post_steps": 5, "num_to_transfer": 2},
]


@pytest.mark.parametrize("slots", [1, 3])
def test_requests_of_all_rules_share_rounds(slots: int) -> None:
    wanted = {}
    requests = []
    for uid, rules in enumerate(RULES * 2):
        prompt = [(3 * uid + k) % 30 + 1 for k in range(1 + uid)]
        wanted[uid] = decode(HashModel(info(**EVERY)), prompt, 3, **rules)
        count = len(wanted[uid])
        fields = {**rules, "prompt": prompt, "max_tokens": count, "ignore_eos": True}
        requests.append(request(uid, **fields))
    results = run(engine(slots), requests)
    assert {uid: ids(blocks) for uid, blocks in results.items()} == wanted


def test_low_confidence_is_the_same_in_mixed_company() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.random((4, 6), np.float32)
    masked = generator.random((4, 6)) < 0.6
    minimum, limit = np.array([1, 2, 3, 1]), np.array([0.5, 0.9, 0.1, np.inf], np.float32)
    algorithm, entropy = np.zeros(4, np.int64), np.zeros((4, 6), np.float32)
    mixed = accept_by(algorithm, confidence, entropy, masked, minimum, limit)
    assert mixed.tolist() == accept(confidence, masked, minimum, limit).tolist()


def test_entropies_are_those_of_the_whole_distribution() -> None:
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [100.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(entropies(logits), torch.tensor([1.3862944, 0.0]))


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"algorithm": "sequential", "threshold": 0.5}, ["threshold", "sequential"]),
        ({"entropy_bound": 0.5}, ["entropy_bound", "low_confidence"]),
        ({"algorithm": "entropy_bounded", "entropy_bound": -1.0}, ["entropy_bound", "-1.0"]),
        ({"max_post_steps": 3}, ["max_post_steps", "editing_threshold"]),
        ({"num_to_transfer": 2}, ["num_to_transfer", "editing_threshold"]),
        ({"editing_threshold": 1.5}, ["editing_threshold", "1.5", "0.0 to 1.0"]),
        ({"editing_threshold": 0.5, "max_post_steps": -1}, ["max_post_steps", "-1"]),
        ({"editing_threshold": 0.5, "num_to_transfer": 9}, ["num_to_transfer", "1 to 4"]),
        ({"editing_threshold": 0.5, "denoise_steps": 2}, ["denoise_steps", "editing"]),
        ({"editing_threshold": 0.5, "algorithm": "sequential"}, ["algorithm", "sequential"]),
        ({"editing_threshold": 0.5, "temperature": 0.7}, ["temperature", "0.7"]),
        ({"editing_threshold": 0.5, "mode": Mode.AUTOREGRESSIVE}, ["editing_threshold", "autoreg"]),
        ({"algorithm": "sequential", "mode": Mode.AUTOREGRESSIVE}, ["algorithm", "autoregressive"]),
    ],
    ids=str,
)
def test_refusals(fields: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(RequestError) as caught:
        engine().validate(request(**fields))
    text = str(caught.value)
    assert "\n" not in text and all(part in text for part in parts)


@pytest.mark.parametrize(
    "fields",
    [{"algorithm": "sequential"}, {"algorithm": "entropy_bounded"}, {"editing_threshold": 0.5}],
)
def test_a_model_without_them_refuses(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        Engine(HashModel()).validate(request(**fields))


def test_a_cancelled_edited_block_gives_no_unsettled_token() -> None:
    runner = engine(1)
    runner.add_request(request(1, max_tokens=8, threshold=0.0, editing_threshold=0.0))
    # every mask is filled, but tokens may still be edited
    assert runner.step() == []
    runner.cancel(1)
    (result,) = runner.step()
    assert result.token_ids == ()
