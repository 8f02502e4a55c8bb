"""Generation from seeded noise: the engine against a plain decoder, endings, what it depends on.

Run: pytest tests/golden
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from blockdiff.core import BlockResult, DecodingParams, FinishReason, Mode, Request, SamplingParams
from blockdiff.core import Phase as Kind
from blockdiff.decoding.draws import NoiseDraws, Places
from blockdiff.engine import Engine, EngineConfig
from blockdiff.engine import uniform as rounds
from blockdiff.errors import ConfigError, RequestError
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.diffusion_gemma import DiffusionGemmaModel
from tests.engine.fakes import ids, run

from . import cases

BLOCK, VOCAB = 8, 128
RULES: dict[str, Any] = {
    "denoise_steps": 6,
    "entropy_bound": 0.7,
    "t_min": 0.3,
    "t_max": 0.9,
    "stability_threshold": 1,
    "confidence_threshold": 0.8,
}


def model() -> DiffusionGemmaModel:
    found = cases.model("diffusion_gemma/canvas8")
    assert isinstance(found, DiffusionGemmaModel)
    return found


def request(uid: int = 1, prompt: Sequence[int] = (19, 42, 101), **fields: Any) -> Request:
    decoding = {k: fields.pop(k) for k in list(fields) if k in DecodingParams.__annotations__}
    fields = {"max_tokens": 20, "ignore_eos": True, "sampling": SamplingParams(seed=7), **fields}
    rules = DecodingParams(**{**RULES, **decoding})
    return Request(uid=uid, input_ids=tuple(prompt), decoding=rules, **fields)


def generate(
    wanted: Sequence[Request], slots: int = 4, codec: Any = None, **settings: int
) -> dict[int, list[BlockResult]]:
    config = EngineConfig(max_slots=slots, max_context=128, **settings)
    return run(Engine(model(), config, codec), wanted)


def places(wanted: Request, block: int, step: int) -> Places:
    """All places of one canvas of one request."""
    own = np.arange(BLOCK)
    start = len(wanted.input_ids) + block * BLOCK
    same = np.ones(BLOCK, np.int64)
    return Places(
        uids=wanted.uid * same,
        seeds=np.full(BLOCK, wanted.sampling.seed, np.uint64),
        blocks=block * same,
        steps=step * same,
        places=own,
        positions=start + own,
    )


def denoise_alone(wanted: Request) -> tuple[list[int], list[int]]:
    """Tokens and steps per canvas, straight from the rules: whole logits, one step at a time."""
    own, rules, draws = model(), wanted.decoding, NoiseDraws(VOCAB)
    steps, stability = rules.denoise_steps, rules.stability_threshold
    t_min, t_max = rules.t_min, rules.t_max
    assert steps is not None and stability is not None and t_min is not None and t_max is not None
    prefix, output, used = list(wanted.input_ids), [], []
    given = dict(wanted.pinned)
    while len(output) < wanted.max_tokens:
        block, history = len(used), []
        pins = {
            place: given[at] for place in range(BLOCK) if (at := block * BLOCK + place) in given
        }
        free = [place for place in range(BLOCK) if place not in pins]
        canvas = draws.start(places(wanted, block, 0)).tolist()
        canvas = [pins.get(place, token) for place, token in enumerate(canvas)]
        caches = own.new_caches(1, 128)
        own.hidden(RoundBatch.from_segments([Segment(Kind.PREFILL, 0, 0, prefix)]), caches)
        for step in range(steps):
            rows = Segment(Kind.PREVIEW, 0, len(prefix), canvas, range(BLOCK))
            logits = own.forward(RoundBatch.from_segments([rows]), caches).double()
            scaled = (logits / (t_min + (t_max - t_min) * (steps - step) / steps)).float()
            p = scaled.double().softmax(1)
            caches.signals[0] = (p.float() @ own.output) * own.config.hidden_size**0.5
            entropy = [-sum(q * np.log(q) for q in row if q > 0) for row in p.tolist()]
            asked = places(wanted, block, step)
            drawn = draws.sampler(asked, own.device)(scaled, slice(0, BLOCK)).tolist()
            fresh, total, accepted = draws.fresh(asked).tolist(), 0.0, set()
            for place in sorted(free, key=lambda place: entropy[place]):
                if total <= (rules.entropy_bound or 0.0):
                    accepted.add(place)
                total += entropy[place]
            canvas = [drawn[i] if i in accepted else fresh[i] for i in range(BLOCK)]
            canvas = [pins.get(place, token) for place, token in enumerate(canvas)]
            best = logits.argmax(1).tolist()
            history.append([pins.get(place, token) for place, token in enumerate(best)])
            is_stable = len(history) > stability and all(
                history[-2 - back] == history[-1] for back in range(stability)
            )
            mean = sum(entropy[place] for place in free) / max(len(free), 1)
            if not free or (is_stable and mean < (rules.confidence_threshold or 0.0)):
                break
        used.append(len(history))
        output += history[-1]
        prefix += history[-1]
    return output[: wanted.max_tokens], used


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
