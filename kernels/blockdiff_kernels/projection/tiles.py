"""Tile sizes of projections by shape and device. Knows nothing of what they compute."""

from typing import NamedTuple

# up to so many rows a source is computed where it is read, again for every tile of outputs; heads
# and pairs have more bytes than the rows they become
FUSED_NORMED, FUSED_PAIRS, FUSED_HEADS = 128, 64, 32
# up to so many rows columns are split
SPLIT_ROWS = 128
HOPPER = (9, 0)
# wider heads than that do not fit beside their gates
LARGEST_HEAD = 128
# programs that keep a GPU's memory busy; enough of them, of larger tiles too
PROGRAMS, ENOUGH, ENOUGH_LARGE = 128, 96, 64
# fewer tiles of columns for a program do not pay for adding up its sums
LEAST_STEPS = 4
MOST_SPLITS = 8
# shared memory for tiles on their way, by compute capability; all others have less
SHARED = {(8, 0): 144 << 10, (9, 0): 200 << 10, (10, 0): 200 << 10, (10, 3): 200 << 10}
LEAST_SHARED = 80 << 10
# what a program should have asked for, so that all of them together hide the memory's latency
IN_FLIGHT = 96 << 10


class Tile(NamedTuple):
    rows: int
    outputs: int
    columns: int
    num_warps: int
    num_stages: int
    splits: int


def width_of(columns: int) -> int:
    """Columns of a tile that holds ``columns``, 0 for 0; products need 16."""
    return max(16, 1 << (columns - 1).bit_length()) if columns else 0


class Shape(NamedTuple):
    """Of one projection."""

    rows: int
    outputs: int
    inputs: int
    width: int  # columns of a head or of a scale, of which tiles are or parts; 0: any
    is_head: bool
    weight_bits: int
    row_bits: int  # of all that is read of a source for a column

    def columns(self) -> int:
        """Of a tile: about as many bytes of each row of weights as memory hands out at once."""
        if self.is_head:
            return width_of(self.width)
        most = {32: 32, 4: 128 if self.rows <= 32 else 64}.get(self.weight_bits, 64)
        return min(most, self.width or most)


def choose(shape: Shape, capability: tuple[int, int]) -> Tile:
    """Tiles, warps, stages and into how many parts columns are split."""
    rows, outputs = _sides(shape, capability)
    columns = shape.columns()
    splits = 1
    if shape.rows <= SPLIT_ROWS:
        steps = -(-shape.inputs // columns)
        programs = max(_programs(shape, rows, outputs), 1)
        splits = max(1, min(PROGRAMS // programs, steps // LEAST_STEPS, MOST_SPLITS))
    stage = columns * (outputs * shape.weight_bits + rows * shape.row_bits) // 8
    most = SHARED.get(capability, LEAST_SHARED) // stage
    num_stages = max(1, min(max(IN_FLIGHT // stage, 3), 6, most))
    is_large = rows * outputs > 64 * 128 or (shape.weight_bits < 16 and rows == 64)
    return Tile(rows, outputs, columns, 8 if is_large else 4, num_stages, splits)


def _sides(shape: Shape, capability: tuple[int, int]) -> tuple[int, int]:
    """Rows and outputs of a tile: the largest that leaves work for all of a GPU.

    What programs read from the L2 cache shrinks with both sides.
    """
    if shape.weight_bits == 32:
        return (16 if shape.rows <= 16 else 32), 64
    rows = next((size for size in (16, 32) if shape.rows <= size), 64)
    # weights that are converted fill more registers
    sides = [(rows, 64)] if shape.weight_bits < 16 and rows < 64 else [(rows, 128), (rows, 64)]
    is_dense = shape.weight_bits == 16
    if shape.rows > SPLIT_ROWS or (is_dense and shape.rows > 64):
        sides.insert(0, (128, 128))
    if shape.rows > SPLIT_ROWS and is_dense and capability == HOPPER:
        # sums of such tiles and a residual together do not fit into the registers of others
        sides.insert(0, (128, 256))
    enough = ENOUGH if shape.rows <= 64 else ENOUGH_LARGE
    return next((side for side in sides if _programs(shape, *side) >= enough), sides[-1])


def _programs(shape: Shape, rows: int, outputs: int) -> int:
    return -(-shape.rows // rows) * -(-shape.outputs // outputs)
