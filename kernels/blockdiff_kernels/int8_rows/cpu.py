"""Exact products of int8 matrices by torch's own operations. Knows which processors suit them.

The library is oneDNN. Large weights are put in its order once, as it would do in every call.
"""

import torch
from torch import Tensor

# the library reorders a plain weight in every call but those of one row
SINGLE_ROWS = 3
# smaller weights cost less than the fixed part of a packed product
LEAST_NUMBERS = 1 << 19
# packed products of signed rows have no fast path without AMX, so rows are moved above zero
ZERO = 128
_NO_ZEROS = torch.zeros(1, dtype=torch.int32)


def is_exact() -> bool:
    """Whether the library runs and adds bytes up in 32 bits: AVX-512 VNNI, AMX.

    Without these instructions it is slow, or adds in 16 bits, which overflow.
    """
    is_there = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    return bool(is_there and torch.cpu._is_vnni_supported())


def pack(values: Tensor) -> Tensor:
    """values int8 [out, in] as ``multiply`` is fastest with; a large one in memory of its own."""
    if values.numel() < LEAST_NUMBERS:
        return values
    packed: Tensor = torch.ops.onednn.qlinear_prepack(values, None)
    return packed


def product(codes: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """codes int8 [R, in], weight from ``pack``, scale [out] -> [R, out] float32."""
    if not codes.shape[0]:
        return scale.new_zeros(0, len(scale))
    if not weight.is_mkldnn:
        return _multiply(codes, weight) * scale
    moved = codes.view(torch.uint8) ^ ZERO
    y: Tensor = torch.ops.onednn.qlinear_pointwise(
        *(moved, 1.0, ZERO, weight, scale, _NO_ZEROS, None, 1.0, 0, torch.float32, "none", [], "")
    )
    return y


def _multiply(codes: Tensor, values: Tensor) -> Tensor:
    if codes.shape[0] <= SINGLE_ROWS:
        return torch.cat([torch._int_mm(code, values.t()) for code in codes.split(1)])
    return torch._int_mm(codes, values.t())
