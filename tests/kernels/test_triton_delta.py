"""Fused kernels of gated delta layers against the float64 definition. Run: pytest tests/kernels"""

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.conv import mirrored_taps
from blockdiff_kernels.gated_delta import commit_rows, preview_rows, two_sweep_rows
from blockdiff_kernels.gated_delta.rows import DeltaRows
from blockdiff_kernels.implementation import using
from blockdiff_kernels.segments import Segments
from tests.kernels.delta_rounds import (
    NAN,
    ODD,
    SMALL,
    TINY,
    WIDE,
    Heads,
    check,
    exact,
    make_rows,
    make_segments,
)

ROUNDS = [
    pytest.param(SMALL, [5, 0, 31, 1], [3, 0, 1, 7], torch.float32, id="mixed"),
    pytest.param(ODD, [63], [2], torch.float32, id="odd-heads"),
    pytest.param(TINY, [1, 16], [5, 6], torch.bfloat16, id="short"),
    pytest.param(WIDE, [32, 33], [1, 0], torch.bfloat16, id="wide-heads"),
]
LONG = pytest.param(WIDE, [100], [5], torch.float32, id="long")
# longer than kernels of two sweeps take
LONGER = pytest.param(TINY, [40, 2], [1, 0], torch.float32, id="longer")
WHOLE = pytest.param(WIDE, [32], [1], torch.bfloat16, id="wide-heads")
ARGUMENTS = ("heads", "lengths", "slots", "dtype")


def empty_out(inputs: DeltaRows, dtype: torch.dtype) -> Tensor:
    return torch.full((inputs.rows.shape[0], *inputs.states.shape[1::2]), NAN, dtype=dtype)


def commit(
    inputs: DeltaRows, segments: Segments, snapshots: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    out = empty_out(inputs, inputs.rows.dtype)
    commit_rows(inputs, segments, snapshots, out)
    return out, inputs.states, inputs.tails


@pytest.mark.parametrize(ARGUMENTS, [*ROUNDS, LONG])
def test_commits(heads: Heads, lengths: list[int], slots: list[int], dtype: torch.dtype) -> None:
    segments = make_segments(lengths, slots)
    inputs = make_rows(heads, segments, dtype)
    snapshots = torch.full((len(lengths),), -1, dtype=torch.int32)
    snapshots[-1] = 8
    wanted = commit(exact(inputs), segments, snapshots)
    with using("triton"):
        found = commit(inputs, segments, snapshots)
    for one, other in zip(found, wanted, strict=True):
        check(one, other, None if dtype == torch.float32 else 8e-3)
    assert torch.equal(inputs.states[8], inputs.states[slots[-1]])
    assert torch.equal(inputs.tails[8], inputs.tails[slots[-1]])


@pytest.mark.parametrize(ARGUMENTS, ROUNDS)
def test_previews(heads: Heads, lengths: list[int], slots: list[int], dtype: torch.dtype) -> None:
    segments = make_segments(lengths, slots)
    inputs = make_rows(heads, segments, dtype)
    before = exact(inputs)
    wanted, found = empty_out(before, torch.float64), empty_out(inputs, torch.float32)
    preview_rows(before, segments, wanted)
    with using("triton"):
        preview_rows(inputs, segments, found)
    check(found, wanted, 2e-6 if dtype == torch.float32 else 8e-3)
    for one, other in zip(inputs, before, strict=True):
        assert torch.equal(one.double().nan_to_num(7e7), other.nan_to_num(7e7))


@pytest.mark.parametrize(ARGUMENTS, [*ROUNDS[::2], WHOLE, LONGER])
def test_two_sweeps(heads: Heads, lengths: list[int], slots: list[int], dtype: torch.dtype) -> None:
    segments = make_segments(lengths, slots)
    inputs = make_rows(heads, segments, dtype)
    before = exact(inputs)
    wanted, found = empty_out(before, torch.float64), empty_out(inputs, torch.float32)
    two_sweep_rows(before, mirrored_taps(before.conv), segments, wanted)
    with using("triton"):
        two_sweep_rows(inputs, mirrored_taps(inputs.conv), segments, found)
    check(found, wanted, 2e-6 if dtype == torch.float32 else 8e-3)


def test_pieces_are_as_good_as_the_whole() -> None:
    """Later pieces, even of one row, begin with the tail that earlier ones left."""
    whole = make_segments([41], [2])
    inputs = make_rows(TINY, whole, torch.float32)
    wanted = commit(exact(inputs), whole)
    out = empty_out(inputs, torch.float32)
    start = int(whole.starts[0])
    with using("triton"):
        for length in (1, 1, 33, 6):
            one = make_segments([length], [2])
            commit_rows(inputs, one._replace(starts=one.starts.fill_(start)), None, out)
            start += length
    for found, exact_one in zip((out, inputs.states, inputs.tails), wanted, strict=True):
        check(found, exact_one)


@pytest.mark.parametrize("length", [16, 64])
def test_a_run_of_one_token_stays_exact(length: int) -> None:
    """Equal keys, beta 1, no decay: a truncated series would be off by orders of magnitude."""
    segments = make_segments([length], [1])
    inputs = make_rows(TINY, segments, torch.float32, repeats=True)
    wanted = commit(exact(inputs), segments)
    with using("triton"):
        found = commit(inputs, segments)
    check(found[0], wanted[0], 1e-5)
    check(found[1], wanted[1], 1e-5)
