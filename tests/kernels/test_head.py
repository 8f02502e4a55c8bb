"""Tiled argmax and confidence against the full softmax. Run: pytest tests/kernels"""

import pytest
import torch

from blockdiff_kernels.head import best_tokens, logits


@pytest.mark.parametrize("tile", [1, 7, 100, 8192])
def test_tiles_give_argmax_and_its_probability(tile: int) -> None:
    generator = torch.Generator().manual_seed(tile)
    hidden = torch.randn(5, 12, generator=generator)
    weight = torch.randn(103, 12, generator=generator)
    ids, confidence = best_tokens(hidden, weight, tile=tile)
    p = (hidden.double() @ weight.double().t()).softmax(-1)
    assert torch.equal(ids, p.argmax(-1))
    torch.testing.assert_close(confidence.double(), p.max(-1).values, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("tile", [1, 2, 64])
def test_excluded_ids_have_probability_zero(tile: int) -> None:
    hidden = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
    scores = (hidden @ weight.t()).double()
    banned = [0, 1, int(scores[0].argmax())]
    ids, confidence = best_tokens(hidden, weight, excluded=banned, tile=tile)
    scores[:, banned] = float("-inf")
    assert torch.equal(ids, scores.argmax(-1))
    want = scores.softmax(-1).max(-1).values
    torch.testing.assert_close(confidence.double(), want, atol=1e-6, rtol=1e-5)


def test_large_logits_do_not_overflow_and_ties_go_to_the_lowest_id() -> None:
    weight = torch.tensor([[1.0], [200.0], [200.0]])
    ids, confidence = best_tokens(torch.tensor([[5.0]]), weight, tile=1)
    assert ids.tolist() == [1]
    torch.testing.assert_close(confidence, torch.tensor([0.5]))


def test_no_rows() -> None:
    weight = torch.randn(9, 6)
    assert logits(torch.zeros(0, 6), weight).shape == (0, 9)
    assert best_tokens(torch.zeros(0, 6), weight)[0].shape == (0,)
