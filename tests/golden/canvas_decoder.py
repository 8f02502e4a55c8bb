"""Requests for a model of random canvases, and a plain decoder of them. Holds no tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from blockdiff.core import BlockResult, DecodingParams, Request, SamplingParams
from blockdiff.core import Phase as Kind
from blockdiff.decoding.draws import NoiseDraws, Places
from blockdiff.engine import Engine, EngineConfig
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.diffusion_gemma import DiffusionGemmaModel
from tests.engine.adjusted_models import adjust_row
from tests.engine.fakes import run

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
            logits = own.forward(RoundBatch.from_segments([rows]), caches)
            for place, row in enumerate(logits.numpy()):
                adjust_row(row, output, len(output) + place, wanted)
            logits = logits.double()
            scaled = (logits / (t_min + (t_max - t_min) * (steps - step) / steps)).float()
            p = scaled.double().softmax(1)
            caches.signals[0] = (p.float() @ own.output) * own.config.hidden_size**0.5
            entropy = [-sum(q * np.log(q) for q in row if q > 0) for row in p.tolist()]
            asked = places(wanted, block, step)
            least = p.amax(1, keepdim=True) * wanted.sampling.min_p
            likely = scaled.masked_fill(p < least, -np.inf)
            drawn = draws.sampler(asked, own.device)(likely, slice(0, BLOCK)).tolist()
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
