"""Activations of single numbers, and twins whose bits do not depend on where a number lies.

silu(x) = x sigmoid(x);  sigmoid(x) = 1 / (1 + exp(-x));  softplus(x) = log(1 + exp(x))
gelu_tanh(x) = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))

torch computes a tensor in vectors of numbers and what is left at the end of each thread's part one
by one, in another way: the last bit of a result may depend on the tensor's size and on the number
of threads. ``STEADY`` consists of steps for which both ways agree.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from blockdiff_kernels.pointwise import reference

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Pointwise:
    """Functions of any shape; the result has the dtype of the argument."""

    silu: Function
    sigmoid: Function
    softplus: Function
    gelu_tanh: Function


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


FAST = Pointwise(functional.silu, torch.sigmoid, functional.softplus, _gelu_tanh)
STEADY = Pointwise(reference.silu, reference.sigmoid, reference.softplus, reference.gelu_tanh)
