"""Kernels for quantised projections against float64. Run: pytest tests/kernels"""

import pytest
import torch
from torch import Tensor

from blockdiff_kernels.implementation import using
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.projection import GatedNormed, GatedPair, Normed, Plain, Source
from blockdiff_kernels.quantized_linear import (
    dequantize,
    pack_int4,
    quantized_linear,
    quantized_projection,
    triton,
)
from blockdiff_kernels.quantized_linear.quantize import quantize_fp8, quantize_int
from tests.kernels.errors import assert_near

EPS = 1e-6
# how it is stored, columns of a scale; None: a scale by output
KINDS = [
    ("int8", None), ("int8", 48), ("fp8", None), ("fp8", 128),
    ("int4", None), ("int4", 32), ("int4", 64), ("int4", 128), ("int4", 6),
]  # fmt: skip


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def stored(kind: str, group: int | None, outputs: int, columns: int) -> tuple[Tensor, Tensor]:
    weight = random(outputs, columns, seed=1)
    if kind == "fp8":
        values, scale = quantize_fp8(weight)
        if group is None:
            return values, scale
        # a scale by block of a checkpoint, written out for its rows
        return values, scale * (1 + torch.arange(columns // group))
    values, scale = quantize_int(weight, 4 if kind == "int4" else 8, group)
    return (pack_int4(values) if kind == "int4" else values), scale


def sources(rows: int, columns: int, dtype: torch.dtype) -> list[Source]:
    x, weight = random(rows, columns, dtype=dtype, seed=2), random(columns, dtype=dtype, seed=3)
    heads = random(rows, 2, columns // 2, seed=4)
    gate = random(rows, 2 * columns, dtype=dtype, seed=5)
    return [
        Plain(x),
        Normed(x, weight, EPS, NormKind.SCALED),
        GatedPair(gate),
        GatedNormed(heads, gate[:, :columns].view_as(heads), weight[: columns // 2].float(), EPS),
    ]


def exact_rows(source: Source) -> Tensor:
    wide = [x.double() if isinstance(x, Tensor) else x for x in source]
    return type(source)(*wide).rows()


@pytest.mark.parametrize(("kind", "group"), KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_source_and_kind(kind: str, group: int | None, dtype: torch.dtype) -> None:
    outputs, columns = 33, 30 if group == 6 else 3 * (group or 100)
    values, scale = stored(kind, group, outputs, columns)
    weight = dequantize(values, scale).double()
    for rows, source in zip((1, 17, 33, 5), sources(33, columns, dtype), strict=True):
        source = type(source)(*(x[:rows] if _has_rows(x) else x for x in source))
        residual = random(rows, outputs, dtype=dtype, seed=6)
        with using("quantized_linear=triton"):
            found = quantized_projection(source, values, scale, residual)
        assert_near(found, residual.double() + exact_rows(source) @ weight.t())


def _has_rows(x: object) -> bool:
    return isinstance(x, Tensor) and x.dim() > 1


def test_fp8_where_no_instruction_converts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "capability", lambda like: (8, 0))
    values, scale = stored("fp8", None, 17, 300)
    x = random(7, 300)
    with using("quantized_linear=triton"):
        found = quantized_linear(x, values, scale)
    assert_near(found, x.double() @ dequantize(values, scale).double().t())


def test_many_rows_and_none() -> None:
    values, scale = stored("int4", 64, 33, 128)
    for rows in (0, 150):
        x = random(rows, 128, dtype=torch.bfloat16)
        with using("quantized_linear=triton"):
            found = quantized_linear(x, values, scale)
        assert_near(found, x.double() @ dequantize(values, scale).double().t())
