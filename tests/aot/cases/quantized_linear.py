"""Projections of quantised weights at the shapes of the largest hybrid model."""

import torch
from torch import Tensor

from blockdiff_kernels.quantized_linear.triton import quantized_projection
from tests.aot.case import Case
from tests.aot.cases.projection import Make, bf16, gelu_pair, heads, normed, plain

# name, source, columns, outputs, whether a residual is added
SHAPES: list[tuple[str, Make, int, int, bool]] = [
    ("35b-delta-in", normed, 2048, 12352, False),
    ("35b-delta-in-normed", plain, 2048, 12352, False),
    ("35b-delta-out", heads, 4096, 2048, True),
    ("35b-attention-out", plain, 4096, 2048, True),
    ("gemma-dense-down", gelu_pair, 2112, 2816, True),
]
# name, stored as, columns of a scale
KINDS = [
    ("int8", torch.int8, None),
    ("fp8", torch.float8_e4m3fn, None),
    ("fp8-blocks", torch.float8_e4m3fn, 128),
    ("int4-32", torch.uint8, 32),
    ("int4-64", torch.uint8, 64),
    ("int4-128", torch.uint8, 128),
]
CHOSEN = [
    ("35b-delta-in", "fp8", 32),
    ("35b-delta-in", "fp8-blocks", 32),
    ("35b-delta-in", "fp8-blocks", 64),
    ("35b-delta-in-normed", "fp8-blocks", 512),
    ("35b-delta-in", "int4-128", 32),
    ("35b-delta-in", "int4-128", 64),
    ("35b-delta-in-normed", "int4-128", 512),
    ("35b-delta-out", "fp8-blocks", 32),
    ("35b-delta-out", "int4-128", 32),
    ("35b-attention-out", "int8", 32),
    ("35b-attention-out", "int4-32", 32),
    ("gemma-dense-down", "int4-64", 32),
]


def case(shape: str, kind: str, rows: int) -> Case:
    _, make, columns, outputs, has_residual = next(one for one in SHAPES if one[0] == shape)
    _, dtype, group = next(one for one in KINDS if one[0] == kind)

    def call() -> Tensor:
        width = columns // 2 if dtype == torch.uint8 else columns
        values = torch.empty(outputs, width, dtype=dtype, device="meta")
        groups = columns // group if group else 1
        scale = torch.empty(outputs, groups, device="meta")
        residual = bf16(rows, outputs) if has_residual else None
        return quantized_projection(make(rows, columns), values, scale, residual)

    wants = ("projection_kernel", "int4_kernel")
    return Case(f"quantized_linear/{shape}/{kind}/T={rows}", call, wants)


CASES = [case(*chosen) for chosen in CHOSEN]
