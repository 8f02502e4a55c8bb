"""Layers whose experts are kernels give what plain layers give. Run: pytest tests/models"""

from pathlib import Path
from typing import Any

import pytest
import torch

from blockdiff.checkpoint import load_model
from blockdiff.models.expert_hits import ExpertHits
from blockdiff.models.group import Alone
from blockdiff.models.layers.fused_experts import FusedExperts
from blockdiff.models.layers.layout import RoundLayout
from blockdiff.models.trunk import LanguageModel
from blockdiff_kernels.coreset import RowBlocks
from blockdiff_kernels.implementation import using
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.norm.sums import Factors
from blockdiff_kernels.projection import Normed
from tests.kernels.errors import assert_near

from .quantized_checkpoints import CONFIGS, FORMATS, write_pair

ROWS, HIDDEN, EXPERTS = 11, 64, 4
# the last row is a filler
COUNT = 10


class Rank(Alone):
    """One of two ranks that never meet."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank


def feed(model: LanguageModel, hits: ExpertHits | None = None) -> torch.Tensor:
    """What the second layer's experts make of random rows."""
    layer: Any = model.layers[1]
    x = torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(0))
    layout: Any = object.__new__(RoundLayout)
    layout.blocks = RowBlocks(torch.arange(ROWS) // 4, 3)
    layout.row_count = torch.tensor([COUNT], dtype=torch.int32)
    own = None if hits is None else hits.of(1, layout.row_count)
    if hasattr(layer, "moe"):
        rows = Normed(x, layer.mixer_norm, 1e-6, NormKind.ZERO_CENTRED)
        return layer.moe(rows, layout, own, x)[:COUNT]
    if hasattr(layer, "middle_norm"):
        rows = Normed(x, layer.middle_norm, 1e-6, NormKind.SCALED)
        return layer.feed_forward(rows, layout, own, x)[:COUNT]
    factors = Factors(layer.scalars, torch.zeros(ROWS, dtype=torch.int64))
    return layer.feed_forward(x, factors, layout, own)[:COUNT]


def part_of(model: LanguageModel) -> Any:
    """The second layer's experts, or what runs in their place."""
    layer: Any = model.layers[1]
    own = layer.moe if hasattr(layer, "moe") else layer.feed_forward
    return getattr(own, "routed", own)


@pytest.mark.parametrize("name", ["int4", "int8", "fp8-block", "gptq"])
@pytest.mark.parametrize("family", sorted(set(CONFIGS) - {"sdar"}))
def test_quantised_experts(tmp_path: Path, family: str, name: str) -> None:
    """Shared experts twice as wide as routed ones are cut in two."""
    quantised, _ = write_pair(tmp_path, family, FORMATS[name])
    plain, counts = load_model(quantised), []
    with using("moe=triton"):
        fused = load_model(quantised)
        assert isinstance(part_of(fused), FusedExperts)
        results = []
        for model in (plain, fused):
            hits = ExpertHits([1], EXPERTS, torch.device("cpu"))
            results.append(feed(model, hits))
            counts.append(hits.counts)
    assert_near(results[1], results[0], 2e-5)
    assert torch.equal(*counts) and counts[0].sum() == 2 * COUNT


@pytest.mark.parametrize("name", [None, "int8"], ids=str)
def test_ranks_give_summands(tmp_path: Path, name: str | None) -> None:
    """Each rank has half of the routed experts and half of the shared one's channels."""
    quantised, dense = write_pair(tmp_path, "clover_moe", FORMATS[name or "int8"])
    folder = dense if name is None else quantised
    x = torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(0))[:COUNT]
    with using("moe=triton"):
        whole, *parts = (load_model(folder, group=g) for g in (Alone(), Rank(0), Rank(1)))
        assert all(isinstance(part_of(model), FusedExperts) for model in parts)
        total = sum(feed(part) - x for part in parts)
        assert_near(total, feed(whole) - x, 2e-5)


def test_a_deterministic_model_stays_plain(tmp_path: Path) -> None:
    _, dense = write_pair(tmp_path, "clover_moe", FORMATS["int8"])
    with using("moe=triton"):
        model = load_model(dense, deterministic=True)
    assert not isinstance(part_of(model), FusedExperts)
