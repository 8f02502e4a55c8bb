"""A request's results in the deterministic mode: the same bits alone and in any company."""

import functools
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdiff.checkpoint import load_model
from blockdiff.core import BlockResult, DecodingParams, Mode, Request, SamplingParams
from blockdiff.decoding.row_sums import log_totals
from blockdiff.decoding.sampling import entropies
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import ConfigError
from blockdiff.models.trunk import LanguageModel
from blockdiff.pages import default_page_length

FIXTURES = Path(__file__).parents[1] / "golden" / "fixtures"
CASES = (
    "clover_moe/layers4_block8",
    "qwen3_5_moe/layers4_block8",
    "llada2_moe_editing/block8",
    "sdar_moe/block4",
    "diffusion_gemma/canvas8",
)
TOKENS = 20
TOLD = ("token_ids", "log_probs", "denoise_steps", "settled_steps", "top_log_probs")


@functools.lru_cache(maxsize=1)
def model(case: str, dtype: str) -> LanguageModel:
    return load_model(FIXTURES / case, dtype=dtype, deterministic=True)


def make_request(own: LanguageModel, uid: int) -> Request:
    """A prompt of its own length, some sampled; where the model can, one goes token by token."""
    draw, info = random.Random(uid), own.info
    length = (3, 37, 18, 52)[uid % 4]
    is_single = not info.decodes_blocks or info.supports_autoregressive and uid % 4 == 2
    changed: dict[str, Any] = {"presence_penalty": 1.0, "repetition_penalty": 1.3, "min_p": 0.01}
    decoding: dict[str, Any] = {} if info.uniform is None else {"denoise_steps": 4}
    return Request(
        uid=uid,
        input_ids=tuple(draw.randrange(2, info.vocab_size - 8) for _ in range(length)),
        max_tokens=TOKENS - uid,
        ignore_eos=True,
        sampling=SamplingParams(
            temperature=0.8 if uid % 2 and info.uniform is None else 0.0,
            seed=uid,
            **(changed if uid in (1, 2, 5) else {}),
        ),
        num_top_log_probs=uid % 3,
        wants_step_map=True,
        decoding=DecodingParams(Mode.AUTOREGRESSIVE if is_single else Mode.DIFFUSION, **decoding),
    )


def run(own: Any, requests: list[Request], gaps: list[int], **settings: int) -> dict[int, Any]:
    """What ``collect`` finds with an engine of these settings."""
    return collect(Engine(own, EngineConfig(**{"max_context": 96, **settings})), requests, gaps)


def collect(engine: Engine, requests: list[Request], gaps: list[int]) -> dict[int, Any]:
    """What is told of the tokens of every request, which joins in a round of ``gaps``."""
    waiting, found = list(zip(requests, gaps, strict=True)), dict[int, list[BlockResult]]()
    rounds = 0
    while waiting or engine.has_work:
        while waiting and engine.free_slots and rounds >= waiting[0][1]:
            engine.add_request(waiting.pop(0)[0])
        for result in engine.step():
            assert result.error is None, result.error
            found.setdefault(result.request_uid, []).append(result)
        rounds += 1
    return {
        uid: [tuple(getattr(block, name) for name in TOLD) for block in blocks]
        for uid, blocks in found.items()
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES)
def test_results_do_not_depend_on_the_batch(case: str, dtype: str) -> None:
    """Alone, all at once, and staggered in other slots with another prefill budget."""
    own = model(case, dtype)
    requests = [make_request(own, uid) for uid in range(4)]
    want = {}
    for request in requests:
        want |= run(own, [request], [0], max_slots=1, prefill_token_budget=512)
    assert run(own, requests, [0] * 4, max_slots=4, prefill_token_budget=512) == want
    staggered = run(own, requests[::-1], [0, 1, 3, 4], max_slots=3, prefill_token_budget=16)
    assert staggered == want


def alike(request: Request, start: Request, length: int) -> Request:
    """``request`` with the first ``length`` tokens of ``start`` before its own."""
    return replace(request, input_ids=start.input_ids[:length] + request.input_ids)


@pytest.mark.parametrize("case", CASES)
def test_results_do_not_depend_on_kept_prefixes_or_on_lost_pages(case: str) -> None:
    """Prompts begin alike, and there is so little memory that requests lose theirs."""
    own = model(case, "float32")
    plain = [make_request(own, uid) for uid in range(6)]
    start = make_request(own, 3)
    requests = [alike(one, start, 17 + 8 * (one.uid % 4)) for one in plain]
    want = {}
    for request in requests:
        want |= run(own, [request], [0], max_slots=1, prefix_cache=False, max_context=160)
    page = default_page_length(own.info.block_length)
    sizes = own.cache_sizes(page, 160)
    config = EngineConfig(
        max_slots=4,
        max_context=160,
        prefill_token_budget=16,
        kv_cache_bytes=sizes.page_bytes * (1 + 144 // page),
        snapshot_interval=16 if sizes.state_bytes else 512,
        deterministic=True,
        check_invariants=True,
    )
    engine = Engine(own, config)
    assert collect(engine, requests, [0, 0, 0, 1, 9, 9]) == want
    assert engine.counters.hit_tokens > 0 and engine.counters.suspensions > 0


def test_a_single_row_is_summed_as_beside_others() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        logits = torch.randn(8, 152064, generator=torch.Generator().manual_seed(0)) * 4
        sums, totals = entropies(logits), log_totals(logits)
        for row in range(8):
            assert torch.equal(entropies(logits[row : row + 1]), sums[row : row + 1])
            assert torch.equal(log_totals(logits[row : row + 1]), totals[row : row + 1])
    finally:
        torch.set_num_threads(before)


def test_a_model_of_the_plain_mode_is_refused() -> None:
    plain: Any = load_model(FIXTURES / CASES[0])
    with pytest.raises(ConfigError, match="deterministic: True needs a model"):
        Engine(plain, EngineConfig(deterministic=True))
