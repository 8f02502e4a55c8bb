"""Weights in the order in which the CPU's matrix library reads them, made once instead of per call.

y = W x, W [out, in]. A packed weight is an opaque tensor of the same shape and dtype; it is given
to these functions instead of the plain one, which nobody needs to keep.

The library is oneDNN. It would otherwise reorder a bfloat16 weight in every call, and torch gives
float32 to another library that is slower on some processors.
"""

import torch
from torch import Tensor

# smaller weights cost less than the fixed part of a packed product
LEAST_NUMBERS = {torch.bfloat16: 1 << 16, torch.float32: 1 << 18}


def is_worth_packing(out_features: int, in_features: int, like: Tensor) -> bool:
    """Whether weights of this size, of the dtype and on the device of ``like``, are faster packed.

    Never where the library or the processor cannot: then products go on as before.
    """
    least = LEAST_NUMBERS.get(like.dtype)
    if least is None or out_features * in_features < least or like.device.type != "cpu":
        return False
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    return like.dtype != torch.bfloat16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack(weight: Tensor) -> Tensor:
    """``weight`` [out, in] packed, in memory of its own."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
    return packed


def is_packed(weight: Tensor) -> bool:
    """Whether ``weight`` comes from ``pack``."""
    return weight.is_mkldnn


def unpack(packed: Tensor) -> Tensor:
    """The plain weight [out, in] again; a copy."""
    return packed.to_dense()


def packed_bytes(packed: Tensor) -> int:
    """Memory of a packed weight; blocks that it does not fill count too."""
    return int(torch.ops.mkldnn._nbytes(packed))


def packed_linear(x: Tensor, packed: Tensor) -> Tensor:
    """y [R, out] of x [R, in], both of the weight's dtype."""
    if x.shape[0] == 0:
        return x.new_zeros(0, packed.shape[0])
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return y
