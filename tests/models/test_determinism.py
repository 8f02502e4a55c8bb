"""Logits and states in the deterministic mode: functions of a sequence, however it was cut."""

import functools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.core import Phase
from blockdiff.models import RoundBatch, Segment
from blockdiff.models.trunk import LanguageModel

FIXTURES = Path(__file__).parents[1] / "golden" / "fixtures"
CASES = (
    "clover_moe/layers4_block8",
    "qwen3_5_moe/layers4_block8",
    "llada2_moe/block8",
    "sdar_moe/block4",
    "diffusion_gemma/canvas8",
)
KINDS = ("float32", "bfloat16", "int8", "fp8", "w8a8")
SLOTS, LENGTH = 4, 104


@functools.lru_cache(maxsize=2)
def load(case: str, dtype: str, deterministic: bool) -> LanguageModel:
    return load_model(FIXTURES / case, dtype=dtype, deterministic=deterministic)


def sequence(own: LanguageModel, slot: int) -> list[int]:
    draw = random.Random(slot)
    return [draw.randrange(own.info.vocab_size) for _ in range(LENGTH)]


def in_company(
    own: LanguageModel, seed: int, is_close: Callable[[Tensor, Tensor], bool] = torch.equal
) -> dict[int, tuple[Tensor, dict[str, Tensor]]]:
    """Every slot's preview logits and states, after sequences were written in random pieces."""
    draw, block = random.Random(seed), own.info.block_length
    caches, done = own.new_caches(SLOTS, 192), [0] * SLOTS
    ends = [LENGTH // block * block - block * slot for slot in range(SLOTS)]
    found = {}
    while min(a - b for a, b in zip(done, ends, strict=True)) < 0:
        segments = []
        for slot in draw.sample(range(SLOTS), draw.randint(1, SLOTS)):
            for _ in range(draw.randint(1, 2)):
                count = min(block * draw.randint(1, 5), ends[slot] - done[slot])
                if count:
                    tokens = sequence(own, slot)[done[slot] : done[slot] + count]
                    phase = draw.choice((Phase.PREFILL, Phase.COMMIT))
                    segments.append(Segment(phase, slot, done[slot], tokens, block_length=block))
                    done[slot] += count
        if segments:
            own.forward(RoundBatch.from_segments(segments), caches)
    for slots in (draw.sample(range(SLOTS), SLOTS), draw.sample(range(SLOTS), 1)):
        rows = range(block)
        previews = [
            Segment(Phase.PREVIEW, slot, ends[slot], sequence(own, slot)[:block], rows)
            for slot in slots
        ]
        logits = own.forward(RoundBatch.from_segments(previews), caches)
        for slot, part in zip(slots, logits.split(block), strict=True):
            states = own.slot_states(caches, slot, ends[slot])
            assert slot not in found or is_close(found[slot][0], part)
            found[slot] = part, states
    return found


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("case", CASES)
def test_logits_and_states_do_not_depend_on_pieces_or_neighbours(case: str, dtype: str) -> None:
    own = load(case, dtype, True)
    want = in_company(own, 0)
    for seed in (1, 2):
        for slot, (logits, states) in in_company(own, seed).items():
            assert torch.equal(logits, want[slot][0]), (seed, slot)
            for name, state in states.items():
                assert torch.equal(state, want[slot][1][name]), (seed, slot, name)


@pytest.mark.parametrize("case", CASES)
def test_the_deterministic_mode_computes_what_the_plain_one_does(case: str) -> None:
    """Up to rounding: its plain twin is the model itself."""
    close = functools.partial(torch.allclose, atol=2e-4, rtol=2e-4)
    plain = in_company(load(case, "float32", False), 0, close)
    steady = in_company(load(case, "float32", True), 0)
    for slot, (logits, states) in plain.items():
        torch.testing.assert_close(steady[slot][0], logits, atol=2e-4, rtol=2e-4)
        for name, state in states.items():
            torch.testing.assert_close(steady[slot][1][name], state, atol=2e-4, rtol=2e-4)
