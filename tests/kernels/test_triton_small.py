"""Kernels around projections against float64: norms with sums, embeddings, pairs, expectations.

Run: pytest tests/kernels
"""

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.embedding import embedding
from blockdiff_kernels.implementation import using
from blockdiff_kernels.norm import gated_rms_norm
from blockdiff_kernels.norm.sums import Factors, Parallel, add_normed, add_parallel, norm_of_sum
from blockdiff_kernels.pointwise.triton import gated_pair
from blockdiff_kernels.self_conditioning import expected_embedding, tiles
from tests.kernels.errors import assert_near

EPS = 1e-6
DTYPES = [torch.float32, torch.bfloat16]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normed(x: Tensor, weight: Tensor | None = None) -> Tensor:
    x = x.double()
    y = x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()
    return y if weight is None else y * weight.double()


@pytest.mark.parametrize("shape", [(1, 17), (5, 300), (3, 2100)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_with_norms(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, first, second = (random(*shape, dtype=dtype, seed=seed) for seed in range(3))
    weights = [random(shape[1], dtype=dtype, seed=seed) for seed in range(3, 6)]
    factors = Factors(random(2, dtype=dtype, seed=6), torch.arange(shape[0]) % 2)
    total = normed(normed(first, weights[0]) + normed(second, weights[1]), weights[2])
    factor = factors.values.double()[factors.kinds].unsqueeze(1)
    with using("triton"):
        assert_near(add_normed(x, first, weights[0], EPS), x.double() + normed(first, weights[0]))
        assert_near(norm_of_sum(x, first, EPS), normed(x.double() + first.double()))
        found = add_parallel(x, Parallel(first, second, *weights), factors, EPS)
    assert_near(found, (x.double() + total) * factor)
    found = add_parallel(x, Parallel(first, second, *weights), factors, EPS)
    assert_near(found, (x.double() + total) * factor, 2e-2 if dtype == torch.bfloat16 else None)


@pytest.mark.parametrize("shape", [(1, 1, 17), (5, 3, 128), (7, 20, 64)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_norm(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    x, weight = random(*shape), random(shape[2], seed=1)
    wide = random(shape[0], 40 + shape[1] * shape[2], dtype=dtype, seed=2)
    gate = wide[:, 7 : 7 + shape[1] * shape[2]].view(shape)
    with using("triton"):
        found = gated_rms_norm(x, gate, weight, EPS)
    assert found.dtype == dtype
    assert_near(found, normed(x, weight) * torch.nn.functional.silu(gate.double()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gated_pairs(dtype: torch.dtype) -> None:
    gate_up = random(5, 2 * 1100 + 4, dtype=dtype)[:, 4:]
    gate, up = gate_up.double().chunk(2, dim=1)
    assert_near(gated_pair(gate_up, False), torch.nn.functional.silu(gate) * up)
    exact = torch.nn.functional.gelu(gate, approximate="tanh") * up
    assert_near(gated_pair(gate_up, True), exact)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embeddings_whole_and_in_part(dtype: torch.dtype) -> None:
    table, ids = random(33, 1030, dtype=dtype), torch.tensor([32, 0, 5, 5, 17])
    with using("triton"):
        assert torch.equal(embedding(ids, table), table[ids])
        assert_near(embedding(ids, table, 1.5), 1.5 * table[ids].double())
        assert embedding(ids[:0], table).shape == (0, 1030)
    for choice in ("triton", "reference"):
        with using(choice):
            low, high = embedding(ids, table[:17], None, 0), embedding(ids, table[17:], None, 17)
        assert torch.equal(low + high, table[ids])


# rows, vocabulary, columns; a long vocabulary has several parts and is split over programs
EXPECTED = [(1, 17, 33), (3, 700, 40), (130, 64, 17)]


@pytest.mark.parametrize("shape", EXPECTED, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_expected_embedding(
    shape: tuple[int, int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "SCANNED", 256)
    monkeypatch.setattr(tiles, "SCANNED_AT_ONCE", 128)
    rows, vocabulary, width = shape
    scores, table = 3 * random(rows, vocabulary), random(vocabulary, width, dtype=dtype, seed=1)
    scores[0, : vocabulary // 2] = float("-inf")
    exact = 2.5 * (scores.double().softmax(1) @ table.double())
    cut = vocabulary // 3
    with using("triton"):
        assert_near(expected_embedding(scores, table, 2.5), exact)
        halves = [
            expected_embedding(scores, table[:cut], 2.5),
            expected_embedding(scores, table[cut:], 2.5, cut),
        ]
    tolerance = 8e-3 if dtype == torch.bfloat16 else 2e-6
    assert_near(halves[0].double() + halves[1].double(), exact, tolerance)
