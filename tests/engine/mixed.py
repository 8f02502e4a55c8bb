"""Requests in which every field that the engine knows is given to some. Holds no tests."""

from collections.abc import Callable
from typing import Any

import numpy as np

from blockdiff.core import Guide, GuideKind, Mode, Ramp, Request, Thinking
from blockdiff.engine import Engine
from blockdiff.errors import RequestError

from .fakes import request

Draw = np.random.Generator
LIKELY = 0.15  # share of the requests that have one of the fields below

GUIDES = (
    Guide(GuideKind.JSON),
    Guide(GuideKind.REGEX, "[ab]{3,9}(cd|e+)*f"),
    Guide(GuideKind.JSON_SCHEMA, '{"type": "object", "properties": {"a": {"enum": ["ab", "cd"]}}}'),
)


def _some(draw: Draw, count: int, high: int) -> tuple[int, ...]:
    return tuple(draw.choice(high, count, replace=False).tolist())


def _pins(draw: Draw, most: int) -> dict[str, Any]:
    places = _some(draw, min(3, most), most)
    return {"pinned": tuple((place, int(draw.integers(30))) for place in places)}


# field or fields -> what they may be, for an answer of at most so many tokens
FIELDS: dict[str, Callable[[Draw, int], dict[str, Any]]] = {
    "drawn": lambda d, n: {"temperature": float(d.uniform(0.3, 2)), "seed": int(d.integers(2**63))},
    "top_k": lambda d, n: {"temperature": 1.0, "top_k": int(d.integers(1, 20))},
    "top_p": lambda d, n: {"temperature": 1.5, "top_p": float(d.uniform(0.1, 1))},
    "min_p": lambda d, n: {"temperature": 1.5, "min_p": float(d.uniform(0.01, 0.5))},
    "repetition_penalty": lambda d, n: {"repetition_penalty": float(d.uniform(0.5, 3))},
    "presence_penalty": lambda d, n: {"presence_penalty": float(d.uniform(-2, 2))},
    "frequency_penalty": lambda d, n: {"frequency_penalty": float(d.uniform(-2, 2))},
    "logit_bias": lambda d, n: {
        "logit_bias": tuple((t, float(d.normal())) for t in _some(d, 4, 50))
    },
    "ramps": lambda d, n: {"ramps": (Ramp(int(d.integers(4)), float(d.uniform(0, 2)), 6.0),)},
    "stop_strings": lambda d, n: {
        "stop_strings": ("ab", "1", "}"),
        "min_tokens": int(d.integers(n)),
    },
    "min_tokens": lambda d, n: {"min_tokens": int(d.integers(n + 1))},
    "ignore_eos": lambda d, n: {"ignore_eos": True},
    "eos_ids": lambda d, n: {"eos_ids": _some(d, 5, 50)},
    "stop_ids": lambda d, n: {"stop_ids": _some(d, 2, 50)},
    # between "a" and "b", which is token 19
    "thinking": lambda d, n: {
        "thinking": Thinking(int(d.integers(n + 2)), (19,), bool(d.integers(2)), "a", "b")
    },
    "pinned": _pins,
    "guide": lambda d, n: {"guide": GUIDES[int(d.integers(len(GUIDES)))]},
    "bad_strings": lambda d, n: {"bad_strings": ("a", "12", "é")},
    "block_length": lambda d, n: {"block_length": int(d.choice([2, 4, 8]))},
    "denoise_steps": lambda d, n: {"denoise_steps": int(d.integers(1, 3))},
    "threshold": lambda d, n: {"threshold": float(d.uniform(0, 1))},
    "entropy_bound": lambda d, n: {"entropy_bound": float(d.uniform(0.2, 3))},
    "editing": lambda d, n: {"editing_threshold": float(d.uniform(0, 0.6)), "max_post_steps": 3},
    "one by one": lambda d, n: {"mode": Mode.AUTOREGRESSIVE},
    "canvases": lambda d, n: {"wants_canvases": True},
    "step map": lambda d, n: {"wants_step_map": True},
    "top log probs": lambda d, n: {"num_top_log_probs": int(d.integers(1, 5))},
    "priority": lambda d, n: {"priority": int(d.integers(0, 4))},
}


def mixed_requests(engine: Engine, count: int, seed: int) -> tuple[list[Request], dict[str, int]]:
    """Requests that ``engine`` accepts, always the same, and how many have which field."""
    draw, made = np.random.default_rng(seed), []
    times = dict.fromkeys((*FIELDS, *engine.model.info.algorithms), 0)
    while len(made) < count:
        most = int(draw.integers(1, 13))
        chosen = [name for name in FIELDS if draw.random() < LIKELY]
        fields: dict[str, Any] = {"algorithm": str(draw.choice(engine.model.info.algorithms))}
        for name in chosen:
            fields |= FIELDS[name](draw, most)
        # two texts, so that prompts have beginnings in common
        step, length = int(draw.integers(7, 9)), int(draw.integers(1, 30))
        prompt = [step * place % 50 for place in range(length)]
        one = request(len(made), prompt, max_tokens=most, **fields)
        try:
            engine.validate(one)
        except RequestError:
            continue
        made.append(one)
        for name in (*chosen, fields["algorithm"]):
            times[name] += 1
    return made, times
