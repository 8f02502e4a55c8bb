"""Accepting tokens on the device and on the host: equal bits. Run: pytest tests/kernels"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.decoding.draws import NoiseDraws
from blockdiff.engine.decisions import Chosen, decide
from blockdiff.engine.device_blocks import read_decisions, update_blocks
from blockdiff.engine.uniform import Chosen as CanvasChoice
from blockdiff.engine.uniform import UniformRounds
from blockdiff.scheduler.arrays import SlotArrays
from blockdiff_kernels.denoise import Preview, Step
from blockdiff_kernels.implementation import using

NOT_A_NUMBER = float("nan")


def random_round(seed: int, width: int, has_entropy: bool) -> tuple[Any, Any, Chosen]:
    """Blocks of every kind and every degree of openness, with equal measures among them."""
    rng = np.random.default_rng(seed)
    slots = 7
    table = SlotArrays(slots)
    table.widen(width)
    shape = table.canvas.shape
    table.block_length[:] = rng.integers(1, width + 1, slots)
    table.block_length[0] = width
    is_place = np.arange(shape[1]) < table.block_length[:, None]
    table.canvas[:] = rng.integers(0, 4, shape)
    table.log_probs[:] = rng.normal(size=shape)
    table.masked[:] = is_place & (rng.random(shape) < rng.choice([0, 0.5, 1], (slots, 1)))
    table.pinned[:] = is_place & ~table.masked & (rng.random(shape) < 0.3)
    table.algorithm[:] = rng.integers(0, 3 if has_entropy else 2, slots)
    table.least_accepted[:] = rng.integers(1, 4, slots)
    table.schedule_steps[:] = rng.integers(0, 4, slots)
    table.step[:] = rng.integers(0, 4, slots)
    table.threshold[:] = rng.choice([0.0, 0.25, 0.5, 2.0, np.inf], slots)
    table.is_editing[:] = rng.random(slots) < 0.4
    table.editing_threshold[:] = rng.choice([0.0, 0.5], slots)
    table.max_post_steps[:] = rng.integers(0, 3, slots)
    table.post_steps[:] = rng.integers(0, 3, slots)
    group_slots = rng.permutation(slots)
    decides = table.masked | (table.is_editing[:, None] & is_place & ~table.pinned)
    groups, places = np.nonzero(decides[group_slots])
    plan = SimpleNamespace(group_slots=group_slots, row_groups=groups, row_places=places)
    count = len(groups)
    log_probs = np.log(rng.choice([0.25, 0.5, 0.75, 0.9, 1.0], count)).astype(np.float32)
    log_probs[rng.random(count) < 0.02] = NOT_A_NUMBER
    entropy = rng.choice([0.125, 0.25, 0.5], count).astype(np.float32)
    tokens = rng.integers(0, 4, count)
    return table, plan, Chosen(tokens, log_probs, entropy if has_entropy else None)


def assert_equal(table: Any, plan: Any, chosen: Chosen) -> None:
    want = decide(table, plan, chosen)
    lines = (None if line is None else torch.from_numpy(line) for line in chosen)
    packed = update_blocks(table, plan, Preview(*lines)).numpy()
    found = read_decisions(packed, want.canvas.shape[1])
    for name in ("canvas", "log_probs", "is_open", "is_settled"):
        np.testing.assert_array_equal(getattr(found, name), getattr(want, name), name)


@pytest.mark.parametrize(("implementation", "examples"), [("triton", 6), ("reference", 40)])
@pytest.mark.parametrize("has_entropy", [False, True])
def test_device_decides_as_the_host(implementation: str, examples: int, has_entropy: bool) -> None:
    @given(seed=st.integers(0, 2**32 - 1), width=st.integers(1, 40))
    @settings(deadline=None, max_examples=examples)
    def run(seed: int, width: int) -> None:
        assert_equal(*random_round(seed, width, has_entropy))

    with using(f"denoise={implementation}"):
        run()


def test_blocks_as_long_as_a_canvas() -> None:
    with using("triton"):
        assert_equal(*random_round(3, 256, True))


@pytest.mark.parametrize("implementation", ["triton", "reference"])
@pytest.mark.parametrize("seed", range(3))
def test_device_renews_canvases_as_the_host(implementation: str, seed: int) -> None:
    """Several steps, as what is kept between them matters too."""
    rng = np.random.default_rng(seed)
    slots, width = 6, (8, 5, 33)[seed]
    model = SimpleNamespace(info=SimpleNamespace(block_length=width), device=torch.device("cpu"))
    rounds = UniformRounds(model, slots, NoiseDraws(50))
    table = SlotArrays(slots)
    table.widen(width)
    table.pinned[:, :width] = rng.random((slots, width)) < rng.choice([0, 0.3, 1], (slots, 1))
    table.schedule_steps[:] = rng.integers(3, 6, slots)
    table.stability_threshold[:] = rng.integers(0, 3, slots)
    table.threshold[:] = rng.choice([0.0, 0.5, 1.0], slots)
    table.confidence_threshold[:] = rng.choice([0.2, 0.4], slots)
    for number in range(4):
        chosen = rng.permutation(slots)[: slots - 1]
        shape = (len(chosen), width)
        table.step[:] = number
        table.canvas[:, :width] = rng.integers(0, 50, (slots, width))
        best = (rng.random(shape) < 0.02).astype(np.int64)
        entropy = rng.choice([0.0625, 0.25, 0.5], shape).astype(np.float32)
        log_probs = rng.normal(size=shape).astype(np.float32)
        drawn, fresh = rng.integers(0, 50, (2, *shape))
        want = rounds._decide(table, chosen, CanvasChoice(best, drawn, log_probs, entropy), fresh)
        lines = (best, drawn, log_probs, entropy)
        step = Step(*(torch.from_numpy(line.reshape(-1)) for line in lines))
        with using(f"denoise={implementation}"):
            packed = rounds._device_canvases.renew(table, chosen, step, fresh)
        found = read_decisions(packed.numpy(), width)
        for name in ("canvas", "log_probs", "is_open", "is_settled"):
            np.testing.assert_array_equal(getattr(found, name), getattr(want, name), name)
