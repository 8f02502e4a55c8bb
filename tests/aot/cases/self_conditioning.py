"""What a step of DiffusionGemma's canvases expects."""

from functools import partial

import torch
from torch import Tensor

from blockdiff_kernels.self_conditioning.triton import expected_embedding
from tests.aot.case import Case


def _expect(rows: int) -> Tensor:
    logits = torch.empty(rows, 262144, device="meta")
    table = torch.empty(262144, 2816, dtype=torch.bfloat16, device="meta")
    return expected_embedding(logits, table, 53.0, 0)


CASES = [
    Case(f"self_conditioning/gemma/T={rows}", partial(_expect, rows), ("expected_kernel",))
    for rows in (256, 2048)
]
