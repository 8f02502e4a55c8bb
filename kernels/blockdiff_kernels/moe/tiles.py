"""Tile sizes of the expert kernels by rows, numbers and device. Knows nothing of what they compute.

Rows of x lie on the N side of products and weights on the M side, so that few rows use whole
tensor core tiles.
"""

from typing import NamedTuple

from blockdiff_kernels.launch import HOPPER, power_of_two


class ScoreTile(NamedTuple):
    """Of the router's product."""

    rows: int
    outputs: int
    depth: int
    num_warps: int
    num_stages: int


class ProductTile(NamedTuple):
    """Of an expert's product: rows of x, outputs and depth of the weight."""

    rows: int
    outputs: int
    depth: int
    num_warps: int
    num_stages: int


def score_tile(rows: int, itemsize: int) -> ScoreTile:
    """``itemsize``: of the router's weight. Few rows need many programs to read it fast."""
    if itemsize > 2:
        return ScoreTile(16, 32, 32, 4, 3)
    if rows <= 256:
        return ScoreTile(16, 32, 128, 4, 4)
    return ScoreTile(32, 64, 64, 4, 4)


class ChoiceTile(NamedTuple):
    """Of the choice and of the placing of rows; the histogram has a line for each."""

    rows: int
    num_warps: int


def choice_tile(rows: int, experts: int) -> ChoiceTile:
    """Many rows in few tiles, as every program reads the histograms of all."""
    most = max(1, 8192 // power_of_two(experts))
    tile = ChoiceTile(8, 4) if rows <= 512 else ChoiceTile(16, 8)
    return tile._replace(rows=min(tile.rows, most))


def product_rows(rows: int, chosen: int, experts: int) -> int:
    """Rows of one expert in a tile: most experts should need one tile only."""
    mean = rows * chosen / max(experts, 1)
    return 16 if mean <= 8 else 32 if mean <= 24 else 64


def gate_up_tile(rows: int, bits: int, capability: tuple[int, int]) -> ProductTile:
    """``rows`` as ``product_rows`` says, ``bits`` of a weight."""
    if bits == 32:
        return ProductTile(rows, 32, 32, 4, 2)
    stages = 4 if capability >= HOPPER and rows < 64 else 3
    return ProductTile(rows, 64, 64 if bits == 16 else 128, 4, stages)


def down_tile(rows: int, bits: int, capability: tuple[int, int]) -> ProductTile:
    """As ``gate_up_tile``."""
    if bits == 32:
        return ProductTile(rows, 32, 32, 4, 2)
    stages = 4 if capability >= HOPPER and rows < 64 else 3
    return ProductTile(rows, 128, 64 if bits == 16 else 128, 8 if bits == 4 else 4, stages)
