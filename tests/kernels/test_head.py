"""Definition of the head against plain formulas. Run: pytest tests/kernels"""

import torch

from blockdiff_kernels.head import Rules, choose, logits


def test_bans_change_what_is_chosen_and_no_probability() -> None:
    hidden = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    weight = torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
    scores = hidden.double() @ weight.double().t()
    log_probs = scores.log_softmax(1)
    banned = [0, 1, int(scores[0].argmax())]
    rules = Rules(torch.tensor([[*banned, -1]], dtype=torch.int32).repeat(4, 1))
    found = choose(hidden, weight, None, rules)
    scores[:, banned] = float("-inf")
    assert torch.equal(found.tokens, scores.argmax(1)) and torch.equal(found.best, found.tokens)
    want = log_probs.gather(1, found.tokens[:, None])[:, 0]
    torch.testing.assert_close(found.log_probs.double(), want, atol=1e-6, rtol=1e-5)


def test_large_logits_do_not_overflow_and_ties_go_to_the_lowest_id() -> None:
    weight = torch.tensor([[1.0], [200.0], [200.0]])
    rules = Rules(torch.full((1, 1), -1, dtype=torch.int32))
    found = choose(torch.tensor([[5.0]]), weight, None, rules)
    assert found.tokens.tolist() == [1]
    torch.testing.assert_close(found.log_probs.exp(), torch.tensor([0.5]))


def test_no_rows() -> None:
    weight = torch.randn(9, 6)
    assert logits(torch.zeros(0, 6), weight).shape == (0, 9)
    rules = Rules(torch.full((0, 1), -1, dtype=torch.int32))
    assert choose(torch.zeros(0, 6), weight, None, rules).tokens.shape == (0,)
