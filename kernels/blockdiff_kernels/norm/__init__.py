"""RMS norms.

rms_norm:        y = x * rsqrt(mean(x^2) + eps) * (1 + w)          (zero-centred weight)
scaled_rms_norm: y = x * rsqrt(mean(x^2) + eps) * w               (weight not zero-centred)
plain_rms_norm:  y = x * rsqrt(mean(x^2) + eps) * w, or without w  (all in float32)
gated_rms_norm:  y = x * rsqrt(mean(x^2) + eps) * w * silu(gate)   (weight not zero-centred)
"""

from torch import Tensor

from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.norm import reference
from blockdiff_kernels.norm.kinds import NormKind
from blockdiff_kernels.pointwise import FAST, Pointwise


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zero-centred RMS norm over the last axis, in float32, cast back to ``x.dtype``.

    x [..., D]; weight broadcastable to x (usually [D], or [heads, D] for per-head weights).
    """
    return norm(x, weight, eps, NormKind.ZERO_CENTRED)


def scaled_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Plain RMS norm over the last axis: normalised in float32, cast back, then scaled.

    x [..., D]; weight broadcastable to x (usually [D], or [heads, D] for per-head weights).
    """
    return norm(x, weight, eps, NormKind.SCALED)


def plain_rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """RMS norm over the last axis, normalised and scaled in float32, cast back to ``x.dtype``.

    x [..., D]; weight broadcastable to x, or None for no scaling.
    """
    return norm(x, weight, eps, NormKind.NO_WEIGHT if weight is None else NormKind.PLAIN)


def norm(x: Tensor, weight: Tensor | None, eps: float, kind: NormKind) -> Tensor:
    """The norm of ``kind``, which names one of the three above.

    x [..., D]; weight broadcastable to x, None for ``NO_WEIGHT``.
    """
    if choose("norm", x.device) is TRITON:
        from blockdiff_kernels.norm import triton

        return triton.rms_norm(x, weight, eps, kind)
    return reference.norm(x, weight, eps, kind)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, pointwise: Pointwise = FAST
) -> Tensor:
    """Gated RMS norm over the last axis, in float32, cast to ``gate.dtype``.

    x [..., D] (often float32), gate [..., D], weight [D].
    """
    if choose("norm", gate.device) is TRITON:
        from blockdiff_kernels.norm import triton

        return triton.gated_rms_norm(x, gate, weight, eps)
    return reference.gated_rms_norm(x, gate, weight, eps, pointwise)
