"""Generation from seeded noise: the engine against a plain decoder, endings, what it depends on.

Run: pytest tests/golden
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from blockdiff.core import (
    DecodingParams,
    FinishReason,
    Mode,
    Ramp,
    Request,
    SamplingParams,
)
from blockdiff.engine import Engine, EngineConfig
from blockdiff.engine import uniform as rounds
from blockdiff.errors import ConfigError, RequestError
from tests.engine.fakes import ids

from . import cases
from .canvas_decoder import BLOCK, VOCAB, denoise_alone, generate, model, request


@pytest.mark.parametrize("tile", [rounds.SAMPLED_TILE, 3 * VOCAB])
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"entropy_bound": 3.0, "stability_threshold": 0},
        {"stability_threshold": 2, "confidence_threshold": 5.0, "denoise_steps": 12},
        {"denoise_steps": 1},
        {"t_min": 0.4, "t_max": 0.4, "entropy_bound": 0.0},
    ],
)
def test_engine_equals_the_plain_decoder(
    rules: dict[str, Any], tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "SAMPLED_TILE", tile)
    wanted = request(**rules)
    blocks = generate([wanted])[1]
    tokens, steps = denoise_alone(wanted)
    assert ids(blocks) == tokens
    assert [block.denoise_steps for block in blocks] == steps
    forwards = blocks[-1].forwards
    assert forwards is not None
    assert (forwards.prefill, forwards.preview, forwards.commit) == (1, sum(steps), 0)
    assert all(log_prob <= 0 for block in blocks for log_prob in block.log_probs)


@pytest.mark.parametrize(
    "sampling",
    [
        {"min_p": 0.5},
        {"presence_penalty": 2.0, "frequency_penalty": 0.5, "min_p": 1.0},
        {"repetition_penalty": 8.0, "logit_bias": ((7, 4.0), (9, -9.0))},
        {"ramps": (Ramp(4, 0.5, 5.0, (11, 12)), Ramp(0, 1.0, 9.0, (13,), is_once=True))},
    ],
)
@pytest.mark.parametrize("tile", [rounds.SAMPLED_TILE, 3 * VOCAB])
def test_changed_logits_are_those_of_the_plain_decoder(
    sampling: dict[str, Any], tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Penalties count what earlier canvases became, as nothing of an open one is final."""
    monkeypatch.setattr(rounds, "SAMPLED_TILE", tile)
    changed = SamplingParams(seed=7, **sampling)
    asked = {"num_top_log_probs": 2, "wants_step_map": True}
    wanted = request(max_tokens=24, sampling=changed, **asked)
    results = generate([wanted, request(2)])
    tokens, steps = denoise_alone(wanted)
    assert ids(results[1]) == tokens
    assert tokens != denoise_alone(request(max_tokens=24))[0]
    assert ids(results[2]) == denoise_alone(request(2))[0]
    for block, step in zip(results[1], steps, strict=True):
        assert block.settled_steps == (step - 1,) * len(block.token_ids)
        own = [
            (token, value) for token, value in zip(block.token_ids, block.log_probs, strict=True)
        ]
        for best, top in zip(own, block.top_log_probs, strict=True):
            assert top[0] == (best[0], pytest.approx(best[1], abs=1e-5)) and len(top) == 2


def many() -> list[Request]:
    """Requests of different lengths, seeds and rules."""
    generator = np.random.default_rng(0)
    return [
        request(
            uid,
            generator.integers(1, VOCAB - 3, 3 + 9 * uid).tolist(),
            max_tokens=5 + 7 * uid,
            denoise_steps=3 + uid,
            entropy_bound=0.2 + uid,
            sampling=SamplingParams(seed=uid),
        )
        for uid in range(5)
    ]


@pytest.mark.parametrize(("slots", "budget"), [(5, 512), (3, 11), (2, 1)])
def test_output_depends_on_request_and_seed_only(slots: int, budget: int) -> None:
    together = generate(many(), slots, prefill_token_budget=budget)
    for wanted in many():
        alone = generate([wanted], 1)[wanted.uid]
        assert ids(together[wanted.uid]) == ids(alone)


def test_canvases_are_never_truncated() -> None:
    with pytest.raises(ConfigError, match="truncate_last_block: .*diffusion_gemma"):
        Engine(model(), EngineConfig(truncate_last_block=True))


def test_seeds_differ() -> None:
    wanted = [request(uid, sampling=SamplingParams(seed=uid)) for uid in range(4)]
    found = generate(wanted)
    assert len({tuple(ids(blocks)) for blocks in found.values()}) > 1


@pytest.mark.parametrize("max_tokens", [1, 7, 8, 9, 16, 17])
def test_max_tokens_is_exact(max_tokens: int) -> None:
    blocks = generate([request(max_tokens=max_tokens)])[1]
    assert ids(blocks) == ids(generate([request()])[1])[:max_tokens]
    assert blocks[-1].finish_reason is FinishReason.LENGTH


def test_the_first_eos_ends_the_answer() -> None:
    every = ids(generate([request()])[1])
    for token in every[::8]:
        wanted = request(ignore_eos=False, eos_ids=(token, VOCAB - 1))
        blocks = generate([wanted])[1]
        assert ids(blocks) == every[: every.index(token) + 1]
        assert blocks[-1].finish_reason is FinishReason.STOP
        assert blocks[-1].stop_reason == str(token)
        ignoring = request(eos_ids=(token,))
        assert ids(generate([ignoring])[1]) == every


def test_no_eos_before_min_tokens() -> None:
    every = ids(generate([request()])[1])
    eos = tuple(sorted(set(every[:4])))
    wanted = request(ignore_eos=False, eos_ids=eos, min_tokens=12)
    found = ids(generate([wanted])[1])
    assert len(found) >= 12 and not set(found[:11]) & set(eos)


class Codec:
    """Token n is one character."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return "".join(chr(0x100 + token) for token in ids)


def test_stop_strings_end_inside_a_finished_canvas() -> None:
    every = ids(generate([request()])[1])
    for start in (2, 7, 13):
        word = Codec().decode(every[start : start + 2])
        end = Codec().decode(every).index(word) + 2
        blocks = generate([request(stop_strings=(word,))], codec=Codec())[1]
        assert ids(blocks) == every[:end]
        assert (blocks[-1].finish_reason, blocks[-1].stop_reason) == (FinishReason.STOP, word)


def test_a_cancelled_request_gives_its_finished_canvases_only() -> None:
    engine = Engine(model(), EngineConfig(max_slots=2, max_context=128))
    engine.add_request(request(confidence_threshold=0.0, max_tokens=30))
    results = [result for _ in range(8) for result in engine.step()]
    engine.cancel(1)
    results += engine.step()
    assert [len(result.token_ids) for result in results] == [BLOCK, 0]
    assert results[-1].finish_reason is FinishReason.CANCELLED


def test_a_reused_slot_forgets_the_canvas_before() -> None:
    first, second = request(1), request(2, (5, 6, 7, 8), confidence_threshold=0.0)
    in_turn = generate([first, second], 1)
    assert ids(in_turn[2]) == ids(generate([second], 1)[2])


def test_defaults_are_the_checkpoints() -> None:
    named = request(
        denoise_steps=48,
        entropy_bound=0.1,
        t_min=0.4,
        t_max=0.8,
        confidence_threshold=0.005,
        max_tokens=8,
    )
    plain = Request(1, named.input_ids, 8, ignore_eos=True, sampling=named.sampling)
    assert ids(generate([plain])[1]) == ids(generate([named])[1])


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"sampling": SamplingParams(temperature=0.5)}, "temperature: 0.5 cannot be combined"),
        ({"sampling": SamplingParams(top_k=3)}, "top_k: 3 cannot be combined"),
        ({"sampling": SamplingParams(top_p=0.5)}, "top_p: 0.5 cannot be combined"),
        ({"threshold": 0.5}, "threshold: 0.5 has no meaning for entropy_bound"),
        ({"editing_threshold": 0.5}, "editing_threshold: diffusion_gemma does not support"),
        ({"num_to_transfer": 2}, "only with token editing"),
        ({"algorithm": "low_confidence"}, "algorithm: 'low_confidence' is unknown"),
        ({"mode": Mode.AUTOREGRESSIVE}, "mode: diffusion_gemma cannot decode autoregressively"),
        ({"block_length": 4}, "block_length: 4 does not work with this model; allowed: 8"),
        ({"denoise_steps": 0}, "denoise_steps: 0 is out of range"),
        ({"entropy_bound": -0.1}, "entropy_bound: -0.1 is out of range"),
        ({"t_min": 0.95}, "t_min: 0.95 is out of range; allowed are 0.0 to 0.9"),
        ({"t_max": 0.0, "t_min": 0.0}, "t_max: 0.0 is out of range"),
        ({"stability_threshold": -1}, "stability_threshold: -1 is out of range"),
        ({"confidence_threshold": float("nan")}, "confidence_threshold: nan is out of range"),
        ({"eos_ids": (VOCAB,)}, "eos_ids: 128 is not a token id"),
    ],
)
def test_refusals(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text.replace("(", r"\(")) as caught:
        Engine(model(), EngineConfig(max_slots=1, max_context=64)).validate(request(**fields))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", ["t_min", "t_max", "stability_threshold", "confidence_threshold"])
def test_masked_models_refuse_what_only_random_canvases_have(field: str) -> None:
    other = Engine(cases.model("sdar/block4"), EngineConfig(max_slots=1, max_context=64))
    wanted = Request(1, (1,), 4, decoding=DecodingParams(**{field: 1}))
    with pytest.raises(RequestError, match=f"{field}: 1 has no meaning for low_confidence"):
        other.validate(wanted)
