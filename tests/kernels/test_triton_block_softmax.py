"""Block softmax over flat rows against the float64 definition. Run: pytest tests/kernels"""

import pytest
import torch

from blockdiff_kernels.block_softmax import block_softmax_rows
from blockdiff_kernels.implementation import using
from tests.kernels.delta_rounds import NAN, ODD, SMALL, TINY, WIDE, Heads, check, exact, make_rows
from tests.kernels.delta_rounds import make_segments as segments_of

ROUNDS = [
    pytest.param(SMALL, [5, 0, 31, 1], [3, 0, 1, 7], torch.float32, id="mixed"),
    pytest.param(ODD, [63], [2], torch.float32, id="odd-heads"),
    pytest.param(TINY, [1, 16], [5, 6], torch.bfloat16, id="short"),
    pytest.param(WIDE, [32, 33], [1, 0], torch.bfloat16, id="wide-heads"),
]


@pytest.mark.parametrize(("heads", "lengths", "slots", "dtype"), ROUNDS)
def test_block_softmax(
    heads: Heads, lengths: list[int], slots: list[int], dtype: torch.dtype
) -> None:
    segments = segments_of(lengths, slots)
    inputs = make_rows(heads, segments, dtype)
    generator = torch.Generator().manual_seed(1)
    right = torch.randn(heads.channels, 3, generator=generator).to(dtype)
    vectors = tuple(3 * torch.randn(heads.value, generator=generator) for _ in range(3))
    before = exact(inputs)
    found = torch.full((inputs.rows.shape[0], heads.value, heads.value_dim), NAN)
    wanted = found.double()
    doubles = tuple(x.double() for x in vectors)
    block_softmax_rows(before, right.double(), doubles, segments, wanted)
    with using("triton"):
        block_softmax_rows(inputs, right, vectors, segments, found)
    check(found, wanted, 2e-6 if dtype == torch.float32 else 8e-3)
    for one, other in zip(inputs, before, strict=True):
        assert torch.equal(one.double().nan_to_num(7e7), other.nan_to_num(7e7))
