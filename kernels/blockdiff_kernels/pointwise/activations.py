"""Activations inside Triton kernels, of float32 numbers."""

import triton
import triton.language as tl


@triton.jit
def silu(b_x):
    """x sigmoid(x)."""
    return b_x / (1.0 + tl.exp(-b_x))


@triton.jit
def gelu_tanh(b_x):
    """x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    b_u = 0.7978845608028654 * (b_x + 0.044715 * b_x * b_x * b_x)
    return b_x / (1.0 + tl.exp(-2.0 * b_u))
