"""Plain torch definitions of the two RMS norms. Knows nothing of layers."""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the package docstring."""
    compute = torch.promote_types(x.dtype, torch.float32)
    x_hat = functional.rms_norm(x.to(compute), x.shape[-1:], None, eps)
    return torch.addcmul(x_hat, x_hat, weight.to(compute)).to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See the package docstring."""
    compute = torch.promote_types(gate.dtype, torch.float32)
    x_hat = functional.rms_norm(x.to(compute), x.shape[-1:], weight.to(compute), eps)
    return (x_hat * functional.silu(gate.to(compute))).to(gate.dtype)
