"""Parts of quantised projections: as cut from the whole, and little more is read.

Run: pytest tests/models
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from blockdiff.checkpoint.load import CheckedCheckpoint, check_files
from blockdiff.checkpoint.quantized_source import QuantizedSource, make_source
from blockdiff.models.layers.linear import Linear, Span
from blockdiff.models.layers.quantized import QuantizedLinear
from blockdiff_kernels.quantized_linear import dequantize

from .quantized_checkpoints import FORMATS, write_pair

# [96, 64]
MODULE = "layers.1.mlp.gate_proj"
ROWS, COLUMNS = 96, 64
# how many columns lie together in a word, or share a scale
UNITS = {"int8": 1, "fp8": 1, "fp8-tensor": 1, "int4-channel": 8, "fp8-block": 16}
PARTS: list[tuple[list[Span] | None, Span | None]] = [
    ([(0, 48)], None),
    ([(50, 51)], None),
    ([(3, 17), (24, 31), (90, 96)], None),
    (None, (0, 32)),
    (None, (32, 64)),
    (None, (16, 48)),
    (None, (20, 22)),
    (None, (7, 50)),
    ([(30, 70)], (40, 64)),
]


def open_source(folder: Path, dtype: str = "float32") -> tuple[CheckedCheckpoint, QuantizedSource]:
    checked = check_files(folder, dtype)
    options = (checked.needed, torch.device("cpu"), torch.float32, ())
    source = make_source(checked.quantized, dtype, options)
    assert isinstance(source, QuantizedSource)
    return checked, source


def weight(linear: Linear) -> Tensor:
    assert isinstance(linear, QuantizedLinear) and linear.values is not None
    return dequantize(linear.values, linear.scale)


@pytest.mark.parametrize("name", FORMATS)
def test_parts_of_a_stored_projection(tmp_path: Path, name: str) -> None:
    folder, _ = write_pair(tmp_path, "sdar", FORMATS[name])
    checked, source = open_source(folder)
    log, unit = checked.files.log, UNITS.get(name, 32)
    whole = weight(source.linear(MODULE))
    assert whole.shape == (ROWS, COLUMNS)
    size = log.bytes_kept
    for rows, columns in PARTS:
        before = log.bytes_kept
        part = weight(source.linear(MODULE, rows, columns))
        start, stop = columns or (0, COLUMNS)
        spans = rows or [(0, ROWS)]
        want = torch.cat([whole[slice(*span), start:stop] for span in spans])
        assert torch.equal(part, want), (rows, columns)
        across = -(-stop // unit) * unit - start // unit * unit
        # per span: what belongs to all rows or all columns, and words of zero points cut in two
        spare = sum(48 + 4 * across + 4 * (last - first) for first, last in spans)
        limit = size * sum(b - a for a, b in spans) * across / (ROWS * COLUMNS)
        assert log.bytes_kept - before <= limit + spare, (rows, columns)


@pytest.mark.parametrize("dtype", ["int8", "int4", "fp8"])
def test_parts_of_a_projection_quantised_while_it_is_read(tmp_path: Path, dtype: str) -> None:
    """Scales are those of the whole projection."""
    _, folder = write_pair(tmp_path, "sdar", FORMATS["int8"])
    checked, source = open_source(folder, dtype)
    whole = weight(source.linear(MODULE))
    for rows, columns in PARTS:
        part = weight(source.linear(MODULE, rows, columns))
        want = torch.cat([whole[slice(*span)] for span in rows or [(0, ROWS)]])
        assert torch.equal(part, want[:, slice(*columns or (0, COLUMNS))]), (rows, columns)
    before = checked.files.log.bytes_read
    source.linear(MODULE, [(0, 10)])
    assert checked.files.log.bytes_read - before == 10 * COLUMNS * 4


@pytest.mark.parametrize("name", FORMATS)
def test_parts_of_a_table_stored_quantised(tmp_path: Path, name: str) -> None:
    folder, _ = write_pair(tmp_path, "sdar", FORMATS[name])
    checked, source = open_source(folder)
    whole = source.tensor(MODULE + ".weight")
    size = checked.files.log.bytes_kept
    part = source.tensor(MODULE + ".weight", [(60, 64), (8, 16)])
    assert torch.equal(part, torch.cat((whole[60:64], whole[8:16])))
    assert checked.files.log.bytes_kept - size < size / 3
