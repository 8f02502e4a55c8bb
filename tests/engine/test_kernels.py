"""The engine with kernels for head and denoising decodes as without. Run: pytest tests/engine

Kernels are interpreted: few requests, of every kind.
"""

from typing import Any

import numpy as np
import pytest

from blockdiff.checkpoint import load_model
from blockdiff.core import BlockResult, Mode
from blockdiff.decoding.acceptance import ALGORITHMS
from blockdiff.engine import Engine, EngineConfig
from blockdiff_kernels.head import keeping
from blockdiff_kernels.implementation import using

from . import edit_models
from .checkpoint import CANVAS_CHECKPOINT
from .fakes import HashModel, info, request, run

MASKED: list[dict[str, Any]] = [
    {"min_tokens": 5, "threshold": 0.4},
    {"temperature": 1.0, "threshold": 0.3, "seed": 5},
    {"temperature": 0.5, "top_k": 5, "top_p": 0.9},
    {"temperature": 1.5, "top_p": 0.6, "denoise_steps": 2},
    {"denoise_steps": 2, "pinned": ((2, 7), (5, 1))},
    {"algorithm": "sequential", "denoise_steps": 3},
    {"algorithm": "entropy_bounded", "entropy_bound": 2.0, "temperature": 1.0},
    {"editing_threshold": 0.2, "max_post_steps": 2, "threshold": 0.3},
    {"mode": Mode.AUTOREGRESSIVE, "eos_ids": (1, 2, 3, 4, 5, 6)},
]
EDITED: list[dict[str, Any]] = [
    {"block_length": 4},
    {"block_length": 8, "min_tokens": 4},
    {"block_length": 4, "editing_threshold": None, "max_post_steps": None, "temperature": 1.0},
]


# Kernels leave a round with one of these to what has all logits.
CHANGED: list[dict[str, Any]] = [
    {"temperature": 1.0, "min_p": 0.2, "threshold": 0.4, "wants_step_map": True},
    {"presence_penalty": 1.5, "logit_bias": ((3, 4.0),), "num_top_log_probs": 2},
    {"editing_threshold": 0.2, "max_post_steps": 2, "threshold": 0.3, "wants_step_map": True},
]


def decode(kernels: str, model: Any, ways: list[dict[str, Any]]) -> list[BlockResult]:
    """All results of a request for each of ``ways``, run together."""
    engine = Engine(model, EngineConfig(max_slots=len(ways), max_context=64))
    if model.info.edits_length:
        wanted = [
            edit_models.numbered(uid, max_tokens=5, **{"max_post_steps": 1, **way})
            for uid, way in enumerate(ways)
        ]
    else:
        wanted = [
            request(uid, range(1, 4 + uid), max_tokens=9, **way) for uid, way in enumerate(ways)
        ]
    with using(kernels):
        return [result for results in run(engine, wanted).values() for result in results]


CASES = [
    ("masked", "triton"),
    ("masked", "triton,denoise=reference"),
    ("masked", "denoise=triton"),
    ("filtered", "triton"),
    ("edited", "triton"),
    ("changed", "triton"),
]


@pytest.mark.parametrize(("kind", "kernels"), CASES)
def test_same_results_as_without_kernels(
    kind: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "PASSES", 6)  # enough for so few tokens
    facts = info(algorithms=ALGORITHMS, supports_editing=True)
    model = edit_models.EditModel(6.0, 5) if kind == "edited" else HashModel(facts)
    ways = {
        "masked": MASKED[:2] + MASKED[4:],
        "filtered": MASKED[2:4],
        "edited": EDITED,
        "changed": CHANGED,
    }[kind]
    want, got = decode("auto", model, ways), decode(kernels, model, ways)
    for plain, fused in zip(want, got, strict=True):
        assert fused.error is None
        assert fused.token_ids == plain.token_ids
        assert fused.denoise_steps == plain.denoise_steps
        assert fused.settled_steps == plain.settled_steps
        assert fused.top_log_probs == plain.top_log_probs
        np.testing.assert_allclose(fused.log_probs, plain.log_probs, atol=2e-6)


@pytest.mark.parametrize("kernels", ["head=triton,denoise=triton", "denoise=triton"])
def test_random_canvases(kernels: str) -> None:
    model = load_model(CANVAS_CHECKPOINT)
    ways: list[dict[str, Any]] = [
        {"min_tokens": 5, "denoise_steps": 3},
        {"denoise_steps": 2, "pinned": ((1, 9), (2, 4)), "wants_step_map": True},
    ]
    want, got = decode("auto", model, ways), decode(kernels, model, ways)
    for plain, fused in zip(want, got, strict=True):
        assert fused.token_ids == plain.token_ids
        assert fused.denoise_steps == plain.denoise_steps
        assert fused.settled_steps == plain.settled_steps
        np.testing.assert_allclose(fused.log_probs, plain.log_probs, atol=1e-4)


def test_broken_logits_fail_one_request() -> None:
    class Broken(HashModel):
        def rows(self, prefix: Any, seen: Any, is_preview: bool) -> Any:
            answers = super().rows(prefix, seen, is_preview)
            return answers * np.nan if prefix[:1] == [9] else answers

    engine = Engine(Broken(info(algorithms=ALGORITHMS)), EngineConfig(max_slots=2, max_context=64))
    fields = {"algorithm": "entropy_bounded", "entropy_bound": 0.1}
    with using("triton"):
        found = run(engine, [request(0, [9], **fields), request(1, [1], **fields)])
    assert found[0][-1].error is not None and found[1][-1].error is None
