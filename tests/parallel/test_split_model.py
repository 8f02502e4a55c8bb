"""Split models against whole ones, all ranks as threads of one process: no sockets, no processes.

Covers what no golden fixture has. Run: pytest tests/parallel/test_split_model.py
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.config import parse_config
from blockdiff.core import Phase
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.diffusion_gemma import DiffusionGemmaModel
from blockdiff.models.expert_layout import FUSED, ONE_BY_ONE
from blockdiff.models.group import ALONE, Group
from blockdiff.models.registry import FAMILIES
from blockdiff.models.trunk import LanguageModel
from tests.golden.cases import FIXTURES
from tests.models.checkpoints import TINY, write

HYBRID = {
    **TINY,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "num_experts": 8,
    "num_experts_per_tok": 3,
}
TRUNK = {
    "model_type": "qwen3",
    "vocab_size": 32,
    "hidden_size": 18,
    "num_hidden_layers": 3,
    "intermediate_size": 24,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "eos_token_id": 1,
    "max_position_embeddings": 64,
}
MOE = {
    **TRUNK,
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 6,
}
LLADA = {
    **MOE,
    "model_type": "llada2_moe",
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_shared_experts": 2,
    "mask_token_id": 31,
    "block_size": 8,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "clover_moe": HYBRID,
    "clover_moe, two sweeps": {**HYBRID, "preview_formulation": "B"},
    "clover_moe, coreset": {**HYBRID, "expert_coreset": {"rule": "top_p", "top_p": 0.6}},
    "clover_moe, wide shared expert": {**HYBRID, "shared_expert_intermediate_size": 20},
    "clover_moe, tied": {**HYBRID, "tie_word_embeddings": True},
    "qwen3": TRUNK,
    "qwen3, tied": {**TRUNK, "tie_word_embeddings": True},
    "qwen3_moe": MOE,
    "qwen3_moe, blocks": {**MOE, "mask_token_id": 31, "block_size": 8},
    "llada2_moe, shared experts": LLADA,
    "llada2_moe, pools": {**LLADA, "expert_capacity": 4},
}


class Exchange:
    """What the threads of one group lay down for each other."""

    def __init__(self, size: int) -> None:
        self.tensors: list[Any] = [None] * size
        self.barrier = threading.Barrier(size)


class ThreadGroup:
    """A ``Group`` whose ranks are threads."""

    def __init__(self, rank: int, size: int, exchange: Exchange) -> None:
        self.rank = rank
        self.size = size
        self._exchange = exchange

    def _all(self, x: Tensor) -> list[Tensor]:
        self._exchange.tensors[self.rank] = x
        self._exchange.barrier.wait(60)
        found = list(self._exchange.tensors)
        self._exchange.barrier.wait(60)
        return found

    def all_reduce(self, x: Tensor) -> Tensor:
        return torch.stack(self._all(x)).sum(0)

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return torch.cat(self._all(x), dim)

    def broadcast(self, x: Tensor) -> Tensor:
        return self._all(x)[0]


def on_all_ranks(size: int, work: Callable[[ThreadGroup], Any]) -> list[Any]:
    """``work`` on every rank at once; results in rank order."""
    exchange = Exchange(size)

    def run(rank: int) -> Any:
        try:
            return work(ThreadGroup(rank, size, exchange))
        except BaseException:
            exchange.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def checkpoint(folder: Path, config: dict[str, Any], is_fused: bool) -> Path:
    parsed = parse_config(config)
    shapes = FAMILIES[parsed.model_type].shapes(parsed, FUSED if is_fused else ONE_BY_ONE)
    generator = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(shape, generator=generator) * 0.3 for n, shape in shapes.items()}
    return write(folder, tensors, config)


def rounds(model: LanguageModel) -> list[Tensor]:
    """Logits of a prefill of two slots, of a preview beside a prefill, and of a riding commit."""
    caches = model.new_caches(3, 48)
    generator = torch.Generator().manual_seed(1)

    def segment(phase: Phase, slot: int, context: int, count: int) -> Segment:
        ids = torch.randint(0, 31, (count,), generator=generator).tolist()
        return Segment(phase, slot, context, ids, range(count), 8)

    plans = [
        [segment(Phase.PREFILL, 0, 0, 16), segment(Phase.PREFILL, 1, 0, 8)],
        [segment(Phase.PREVIEW, 0, 16, 8), segment(Phase.PREFILL, 2, 0, 5)],
        [segment(Phase.COMMIT, 0, 16, 8), segment(Phase.PREVIEW, 0, 24, 8)],
    ]
    return [model.forward(RoundBatch.from_segments(plan), caches) for plan in plans]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_whole_model(name: str, size: int, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, CONFIGS[name], is_fused=size == 4)
    want = rounds(load_model(folder))
    results = on_all_ranks(size, lambda group: rounds(load_model(folder, group=group)))
    for got in results:
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, atol=3e-4, rtol=1e-3)


def canvases(group: Group, dtype: str = "float32") -> list[Tensor]:
    """Logits, signals and states of a prefill and of three steps of the canvas after it."""
    model = load_model(FIXTURES / "diffusion_gemma" / "canvas8", dtype=dtype, group=group)
    assert isinstance(model, DiffusionGemmaModel)
    caches = model.new_caches(1, 32)
    prefill = Segment(Phase.PREFILL, 0, 0, range(3, 16), (12,))
    canvas = Segment(Phase.PREVIEW, 0, 13, range(40, 48), range(8))
    found = [model.forward(RoundBatch.from_segments([prefill]), caches)]
    for _ in range(3):
        logits = model.forward(RoundBatch.from_segments([canvas]), caches)
        found += [logits, model.expect(logits)]
        places = torch.arange(8)
        model.store_signals(caches, found[-1], torch.zeros_like(places), places)
    states = model.slot_states(caches, 0, 13)
    return found + [states[name] for name in sorted(states)]


def test_canvases_with_signals_on_four_ranks() -> None:
    """Two key heads in one kind of layer, one in the other: both are copied."""
    want = canvases(ALONE)
    for got in on_all_ranks(4, canvases):
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, atol=3e-4, rtol=1e-3)


@pytest.mark.parametrize("family", ["clover_moe", "diffusion_gemma"])
def test_ranks_agree_to_the_bit_in_bfloat16(family: str, tmp_path: Path) -> None:
    """They route by their own copies of the rows, so a difference would take experts apart."""
    folder = checkpoint(tmp_path, HYBRID, is_fused=False)

    def run(group: ThreadGroup) -> list[Tensor]:
        if family == "diffusion_gemma":
            return canvases(group, "bfloat16")
        return rounds(load_model(folder, dtype="bfloat16", group=group))

    first, *others = on_all_ranks(4, run)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_caches_have_only_the_local_heads(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, HYBRID, is_fused=False)
    caches = on_all_ranks(4, lambda group: load_model(folder, group=group).new_caches(2, 16))[3]
    assert caches.keys.shape == (1, 1, 2, 16, 8)
    assert caches.states.shape == (3, 2, 1, 4, 4)
    assert caches.tails.shape == (3, 2, 3, 3 * 4)
