"""Tiles of projections suit their shapes. Run: pytest tests/kernels"""

import itertools

import pytest

from blockdiff_kernels.projection.tiles import (
    FUSED_HEADS,
    LARGEST_HEAD,
    LEAST_SHARED,
    LEAST_STEPS,
    MOST_SPLITS,
    PROGRAMS,
    SHARED,
    Shape,
    choose,
)

ROWS = [1, 16, 17, 32, 64, 100, 128, 129, 512, 2048]
SIZES = [(2048, 12352), (4096, 2048), (2112, 2816), (2048, 64), (96, 1)]


@pytest.mark.parametrize("weight_bits", [32, 16, 8, 4])
@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
def test_tiles_fit_and_keep_scales_and_heads_whole(
    weight_bits: int, capability: tuple[int, int]
) -> None:
    widths = [(0, False), (32, False), (128, False), (24, True), (LARGEST_HEAD, True)]
    row_bits = 32 if weight_bits == 32 else 16
    for rows, (inputs, outputs), (width, is_head) in itertools.product(ROWS, SIZES, widths):
        if is_head and rows > FUSED_HEADS:
            # such heads are normed by a kernel of their own
            continue
        bits = 48 if is_head else row_bits
        shape = Shape(rows, outputs, inputs, width, is_head, weight_bits, bits)
        tile = choose(shape, capability)
        assert tile.columns >= width if is_head else not width % tile.columns
        assert tile.columns & (tile.columns - 1) == 0
        bytes_of_stage = tile.columns * (tile.outputs * weight_bits + tile.rows * bits) // 8
        assert 1 <= tile.num_stages * bytes_of_stage <= SHARED.get(capability, LEAST_SHARED)


def test_few_outputs_are_split_and_many_rows_are_not() -> None:
    few, many = (Shape(rows, 2048, 4096, 0, False, 16, 16) for rows in (32, 512))
    tile = choose(few, (9, 0))
    programs = -(-few.outputs // tile.outputs) * tile.splits
    assert 1 < tile.splits <= MOST_SPLITS and programs <= PROGRAMS
    assert few.inputs // tile.columns // tile.splits >= LEAST_STEPS
    assert choose(many, (9, 0)).splits == 1
