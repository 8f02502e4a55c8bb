"""Angles, head norms, turns and writes as kernels against float64. Run: pytest tests/kernels"""

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.implementation import using
from blockdiff_kernels.rope import (
    HeadNorm,
    Heads,
    Scaling,
    Store,
    proportional_angles,
    rope_angles,
    turn_and_write,
    write_rows,
)
from tests.kernels.errors import assert_near

NAN = float("nan")
EPS = 1e-6


@pytest.mark.parametrize("kind", ["plain", "proportional"])
def test_angles(kind: str) -> None:
    """As exact as a float32 product can be turned, at positions near and far."""
    positions = torch.tensor([[0, 1, 7], [63, 4096, 262143]])
    sizes = {"plain": (rope_angles, 64), "proportional": (proportional_angles, 96)}
    function, dim = sizes[kind]
    rest = (1e4,) if kind == "plain" else (11, 1e4)
    reference = function(positions, dim, *rest)
    with using("triton"):
        cos, sin = function(positions, dim, *rest)
    count = dim // 2 if kind == "plain" else 11
    exponents = torch.arange(0, 2 * count, 2, dtype=torch.float32) / dim
    angles = (positions.float().unsqueeze(-1) * (1.0 / 1e4**exponents)).double()
    assert cos.shape == reference[0].shape
    assert (cos[..., :count] - angles.cos()).abs().max() < 3e-7
    assert (sin[..., :count] - angles.sin()).abs().max() < 3e-7
    assert (cos[..., count:] == 1).all()
    assert (sin[..., count:] == 0).all()


def exact(
    projected: Tensor, norm: HeadNorm, angles: tuple[Tensor, Tensor], heads: Heads
) -> tuple[Tensor, Tensor]:
    """The definition in float64."""
    wide, turning = projected.double(), heads.query + heads.kv
    norms = (wide.pow(2).mean(-1, keepdim=True) + EPS).rsqrt()
    weight = norm.weight.double() + (norm.scaling is Scaling.ZERO_CENTRED)
    x = (wide * norms)[:, :turning] * weight
    cos, sin = (own.double().unsqueeze(1) for own in angles)
    half = cos.shape[-1]
    first, second, rest = x.split_with_sizes((half, half, x.shape[-1] - 2 * half), -1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)
    chosen = slice(heads.value, heads.value + heads.kv)
    return turned, (wide * norms if heads.norms_value else wide)[:, chosen]


CASES = {
    "gated": (Heads(4, 2, 6), 48, 16, 12, Scaling.ZERO_CENTRED),
    "plain": (Heads(3, 1, 4), 128, 128, 5, Scaling.SCALED),
    "keys-are-values": (Heads(8, 1, 8, True), 64, 64, 9, Scaling.PLAIN),
    "normed-values": (Heads(4, 2, 6, True), 32, 32, 8, Scaling.PLAIN),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_turn_and_write(name: str, dtype: torch.dtype) -> None:
    heads, dim, rotary_dim, width, scaling = CASES[name]
    generator = torch.Generator().manual_seed(3)
    rows, turning = 13, heads.query + heads.kv
    projected = torch.randn(rows, width, dim, generator=generator).to(dtype)
    projected[4] = NAN
    weight = torch.randn(turning, dim, generator=generator).to(dtype)
    norm = HeadNorm(weight, EPS, scaling)
    angles = rope_angles(torch.arange(rows) * 37, rotary_dim, 1e4)
    keys, values = (torch.full((heads.kv, 5, 4, dim), NAN, dtype=dtype) for _ in range(2))
    written = torch.full((rows,), -1)
    chosen = torch.tensor([0, 2, 3, 11])
    written[chosen] = torch.tensor([19, 4, 0, 7])
    with using("triton"):
        turned, value = turn_and_write(projected, norm, angles, heads, Store(keys, values, written))
        alone = turn_and_write(projected, norm, angles, heads)
    fine = [row for row in range(rows) if row != 4]
    want = exact(projected, norm, angles, heads)
    for got, again, right in zip((turned, value), alone, want, strict=True):
        assert_near(got[fine], right[fine])
        assert torch.equal(got[fine], again[fine])
        assert got[4].isnan().all() == right[4].isnan().all()
    for store, rows_of in ((keys, turned[:, heads.query :]), (values, value)):
        flat = store.flatten(1, 2)
        assert torch.equal(flat[:, written[chosen]].transpose(0, 1), rows_of[chosen])
        assert (~flat.isnan()).sum() == len(chosen) * heads.kv * dim


def test_write_rows_writes_what_the_definition_does() -> None:
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(2, 9, 5, 24, generator=generator)
    key, value = rows[0, :, 1:4], rows[1, :, 2:]
    written = torch.tensor([-1, 5, 11, -1, 0, 3, -1, -1, 2])
    found = []
    for implementation in ("triton", "reference"):
        keys, values = (torch.zeros(3, 2, 6, 24) for _ in range(2))
        with using(implementation):
            write_rows(key, value, Store(keys, values, written))
        found.append((keys, values))
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)
        assert got.any()


def test_the_plain_twin_of_turning() -> None:
    heads, dim, rotary_dim, width, scaling = CASES["keys-are-values"]
    projected = torch.randn(6, width, dim, generator=torch.Generator().manual_seed(1))
    norm = HeadNorm(torch.rand(heads.query + heads.kv, dim), EPS, scaling)
    angles = rope_angles(torch.arange(6), rotary_dim, 1e4)
    with using("reference"):
        got = turn_and_write(projected, norm, angles, heads)
    for mine, right in zip(got, exact(projected, norm, angles, heads), strict=True):
        assert_near(mine, right)
