"""RMS norms and rotary embedding against float64 formulas. Run: pytest tests/kernels"""

import torch

from blockdiff_kernels.norm import gated_rms_norm, rms_norm
from blockdiff_kernels.rope import apply_rope, rope_angles


def test_rms_norm_is_zero_centred_and_keeps_the_dtype() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 7, 33, generator=generator)
    weight = torch.randn(7, 33, generator=generator)
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    exact = exact * (1 + weight.double())
    torch.testing.assert_close(rms_norm(x, weight, 1e-6).double(), exact, atol=1e-5, rtol=1e-5)
    assert rms_norm(x.bfloat16(), weight.bfloat16(), 1e-6).dtype == torch.bfloat16


def test_gated_rms_norm_is_not_zero_centred() -> None:
    generator = torch.Generator().manual_seed(1)
    x, gate = torch.randn(2, 3, 17, generator=generator)
    weight = torch.randn(17, generator=generator)
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
    exact = exact * weight.double() * gate.double() * gate.double().sigmoid()
    got = gated_rms_norm(x, gate, weight, 1e-6)
    torch.testing.assert_close(got.double(), exact, atol=1e-5, rtol=1e-5)


def test_norm_of_zeros_is_zero() -> None:
    assert rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-6).abs().max() == 0


def test_rope_turns_pairs_by_position_and_leaves_the_rest() -> None:
    positions = torch.tensor([0, 1, 77])
    x = torch.randn(3, 2, 10, generator=torch.Generator().manual_seed(2))
    cos, sin = rope_angles(positions, 4, 100.0)
    got = apply_rope(x, cos, sin)
    assert torch.equal(got[0], x[0])
    assert torch.equal(got[..., 4:], x[..., 4:])
    for row, position in enumerate(positions.tolist()):
        for pair in range(2):
            angle = torch.tensor(position * 100.0 ** (-2 * pair / 4), dtype=torch.float64)
            first, second = x[row, :, pair].double(), x[row, :, pair + 2].double()
            want = first * angle.cos() - second * angle.sin()
            torch.testing.assert_close(got[row, :, pair].double(), want, atol=1e-5, rtol=1e-5)
            want = second * angle.cos() + first * angle.sin()
            torch.testing.assert_close(got[row, :, pair + 2].double(), want, atol=1e-5, rtol=1e-5)
