"""Which shapes are captured, which one a round gets, and what is refused.

Run: pytest tests/engine/test_step_shapes.py
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from blockdiff.checkpoint import load_model
from blockdiff.core import Phase
from blockdiff.engine import Engine, EngineConfig
from blockdiff.engine.graphs import why_no_graphs
from blockdiff.engine.step_shapes import LONG, SIZE, WAVES, find_shape, page_counts, step_shapes
from blockdiff.errors import ConfigError
from blockdiff.models.base import RoundBatch, Segment
from blockdiff_kernels.implementation import using

from .checkpoint import CHECKPOINT
from .fakes import info
from .host_recorder import HostRecorder

BLOCK, PAGE = 4, 16
SHAPES = step_shapes(info(), (1, 2, 4, 8, 16), num_slots=3, pages_per_slot=40)


def commit(slot: int, context: int = 8, count: int = BLOCK, grid: int = BLOCK) -> Segment:
    return Segment(Phase.COMMIT, slot, context, [1] * count, [count - 1], block_length=grid)


def preview(slot: int, context: int = 8, count: int = BLOCK) -> Segment:
    return Segment(Phase.PREVIEW, slot, context, [1] * count, range(count))


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        # rows, writing segments, previews, rows of a segment, pages
        ([preview(0)], (4, 0, 1, 4, 16)),
        ([preview(0), preview(1, 16 * 16)], (8, 0, 2, 4, 16)),
        ([preview(0), preview(1, 16 * 16 + 1)], (8, 0, 2, 4, 40)),
        ([preview(0), preview(1), preview(2)], (16, 0, 3, 4, 16)),
        # a block's row more than fits is the next size
        ([commit(0), preview(0, 12)], (8, 2, 2, 4, 16)),
        ([commit(0), preview(0, 12), preview(1)], (16, 3, 3, 4, 16)),
        ([commit(n) for n in range(3)] + [preview(n, 12) for n in range(3)], (32, 3, 3, 4, 16)),
        # single rows, with and without a block beside them
        ([commit(0, count=1), commit(2, count=1)], (2, 2, 0, 1, 16)),
        ([commit(0, count=1), preview(1)], (8, 2, 2, 4, 16)),
        # what goes its own way
        ([commit(0, count=2)], SIZE),
        ([preview(0, count=5)], SIZE),
        ([commit(0, count=5), preview(1)], LONG),
        ([commit(0, count=5, grid=8)], SIZE),
        ([commit(0), commit(0, 12), preview(0, 16)], WAVES),
    ],
)
def test_the_smallest_shape_that_holds_a_round(
    segments: Sequence[Segment], expected: tuple[int, ...] | str
) -> None:
    found = find_shape(SHAPES, RoundBatch.from_segments(segments), PAGE)
    if not isinstance(found, str):
        assert found.logit_rows == found.rows
        found = (found.rows, found.writing, found.previews, found.width, found.pages)
    assert found == expected


def test_a_models_ways_decide_what_is_captured() -> None:
    sizes, slots = (1, 2, 4, 8, 16), 3
    assert len(SHAPES) == 2 * (3 + 3 + 3)
    only_blocks = step_shapes(info(supports_autoregressive=False), sizes, slots, 40)
    assert len(only_blocks) == 2 * (3 + 3) and all(shape.width == BLOCK for shape in only_blocks)
    only_rows = step_shapes(info(mask_token_id=-1), sizes, slots, 40)
    assert len(only_rows) == 2 * 3 and all(shape.width == 1 for shape in only_rows)
    assert [page_counts(count) for count in (1, 16, 40, 100, 1024)] == [
        (1,),
        (16,),
        (16, 40),
        (16, 100),
        (128, 1024),
    ]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"graph_blocks": 5}, "graph_blocks: 5 .* a tuple of at least one number"),
        ({"cuda_graphs": "yes"}, "cuda_graphs: 'yes' .* True, False or None"),
        ({"graph_blocks": ()}, "graph_blocks: .* at least one number"),
        ({"graph_blocks": (4, 0)}, "graph_blocks: 0 .* at least 1"),
        ({"cuda_graphs": True, "deterministic": True}, "cuda_graphs: .* leave one of them out"),
    ],
)
def test_settings_that_cannot_be(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        EngineConfig(**fields)


def test_graphs_need_a_gpu_and_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, config = load_model(CHECKPOINT), EngineConfig(max_slots=2, max_context=32)
    with pytest.raises(ConfigError, match="cuda_graphs: True is not possible: it needs a GPU"):
        Engine(model, replace(config, cuda_graphs=True))
    assert Engine(model, config)._rounds.captured is None
    # the rest is as on a device that has memory for caches, and not for steps
    needed = 10**6
    monkeypatch.setattr("blockdiff.engine.memory.free_memory", lambda device: needed)
    Engine(model, config)
    with pytest.raises(ConfigError, match=f"captured steps [0-9]+, {needed} are free"):
        Engine(model, replace(config, graph_blocks=(512,)), recorder=HostRecorder())
    # attributes of a whole model, on a device that is not here
    monkeypatch.setattr(model, "device", torch.device("cuda"))
    assert why_no_graphs(model, config) is None
    steady = replace(config, deterministic=True)
    assert "deterministic" in (why_no_graphs(model, steady) or "")

    with using("moe=reference"):
        assert "(moe)" in (why_no_graphs(model, config) or "")
