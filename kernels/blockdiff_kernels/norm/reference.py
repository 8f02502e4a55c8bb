"""Plain torch definitions of the RMS norms. Knows nothing of layers."""

import torch
from torch import Tensor

from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.pointwise import FAST, Pointwise


def norm(x: Tensor, weight: Tensor | None, eps: float, kind: NormKind) -> Tensor:
    """See the package."""
    if weight is None or kind is NormKind.PLAIN:
        return plain_rms_norm(x, weight, eps)
    if kind is NormKind.SCALED:
        return scaled_rms_norm(x, weight, eps)
    return rms_norm(x, weight, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the package docstring."""
    x_hat = _normalise(x, eps)
    return torch.addcmul(x_hat, x_hat, weight.to(x_hat.dtype)).to(x.dtype)


def scaled_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the package docstring."""
    return _normalise(x, eps).to(x.dtype) * weight.to(x.dtype)


def plain_rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """See the package docstring."""
    x_hat = _normalise(x, eps)
    return (x_hat if weight is None else x_hat * weight.to(x_hat.dtype)).to(x.dtype)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, pointwise: Pointwise = FAST
) -> Tensor:
    """See the package docstring."""
    x_hat = _normalise(x, eps)
    opened = pointwise.silu(gate.to(x_hat.dtype))
    return (x_hat * weight.to(x_hat.dtype) * opened).to(gate.dtype)


def _normalise(x: Tensor, eps: float) -> Tensor:
    """x * rsqrt(mean(x^2) + eps), in float32 or better."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    mean: Tensor = torch.linalg.vecdot(x, x) * (1 / x.shape[-1])
    return x * (mean + eps).rsqrt().unsqueeze(-1)
