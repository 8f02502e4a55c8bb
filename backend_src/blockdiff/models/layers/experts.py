"""The experts of one layer as an object: a stack of small gated MLPs, whatever it is stored as.

Knows how to apply chosen experts; knows nothing of routing or of checkpoints.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor

from blockdiff_kernels.moe import all_experts, experts, prefers_all_experts
from blockdiff_kernels.moe.stacks import ExpertWeights, dense_weights


class Experts(ABC):
    """``count`` experts of one width: y = down (a(gate x) * up x). Never changed once made.

    The activation a is silu unless a class is told another one of ``blockdiff_kernels.moe``.
    """

    count: int
    routed_here: tuple[int, int] | None = None
    """Numbers of the routed experts whose weights are here; None: of all."""

    @abstractmethod
    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Weighted sum of each row's experts: x [R, H] -> [R, H].

        weights [R, k] float32; ids [R, k] int64, distinct in a row but for ``count``, which stands
        for an expert that is elsewhere and adds nothing.
        """

    def for_kernels(self) -> ExpertWeights | None:
        """The weights that are here as kernels read them; None where they cannot."""
        return None

    def prefers_all(self, rows: int) -> bool:
        """Whether ``weigh_all`` is the faster way for so many rows."""
        return False

    def weigh_all(self, x: Tensor, weights: Tensor) -> Tensor:
        """The same with weights [R, count] of every expert, zero where not chosen."""
        ids = torch.arange(self.count, device=x.device).expand(x.shape[0], -1)
        return self(x, weights, ids)


class DenseExperts(Experts):
    """All weights as two tensors, in the dtype that activations have."""

    def __init__(self, gate_up: Tensor, down: Tensor, activation: str = "silu") -> None:
        self.gate_up = gate_up  # [count, 2I, H], gate rows first
        self.down = down  # [count, I, H]: transposed, so that all experts form one matrix
        self.count = down.shape[0]
        self.activation = activation

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Weighted sum of each row's experts: x [R, H] -> [R, H]."""
        return experts(x, weights, ids, self.gate_up, self.down, self.activation)

    def for_kernels(self) -> ExpertWeights:
        """See ``Experts``; no copies."""
        return dense_weights(self.gate_up, self.down, self.activation)

    def prefers_all(self, rows: int) -> bool:
        """Whether ``weigh_all`` is the faster way for so many rows."""
        return prefers_all_experts(rows, self.down)

    def weigh_all(self, x: Tensor, weights: Tensor) -> Tensor:
        """The same with weights [R, count] of every expert: two matrix products."""
        return all_experts(x, weights, self.gate_up, self.down, self.activation)


class ExpertStack(Protocol):
    """Experts while they are read, one after the other."""

    def place(self) -> tuple[Tensor, Tensor]:
        """Zeros for the next expert's gate_up [2I, H] and down [I, H], to write to.

        What ``place`` gave before is not written to any more.
        """
        ...

    def finish(self, activation: str) -> Experts:
        """All experts placed."""
        ...


class DenseStack:
    """An ``ExpertStack`` that reads into the two tensors of ``DenseExperts``."""

    def __init__(self, total: int, inner: int, hidden: int, like: Tensor) -> None:
        self.gate_up = like.new_zeros(total, 2 * inner, hidden)
        self.down = like.new_zeros(total, inner, hidden)
        self.placed = 0

    def place(self) -> tuple[Tensor, Tensor]:
        """See ``ExpertStack``."""
        self.placed += 1
        return self.gate_up[self.placed - 1], self.down[self.placed - 1]

    def finish(self, activation: str) -> DenseExperts:
        """See ``ExpertStack``."""
        assert self.placed == len(self.down), "every expert has been placed"
        return DenseExperts(self.gate_up, self.down, activation)
