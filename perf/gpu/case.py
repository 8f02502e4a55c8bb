"""One call of an op that is checked against its definition and timed. Knows no op."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockdiff_kernels.cost import Cost

# what a call leaves behind
Results = Sequence[Tensor]


class Work(NamedTuple):
    """A prepared call; called again it works on the same memory, so what it writes adds up."""

    run: Callable[[], Any]
    look: Callable[[Any], Results] = list
    """What is compared of what ``run`` gives; not timed."""


class Maker:
    """Random inputs on a device. The same seed gives the same numbers in every ``dtype``: those
    that bfloat16 has."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype
        self.state_dtype = torch.promote_types(dtype, torch.float32)
        self._generator = torch.Generator(device).manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype | None = None) -> Tensor:
        """Numbers around 0, in ``dtype`` or the maker's."""
        drawn = torch.empty(shape, device=self.device, dtype=torch.bfloat16)
        drawn.normal_(0.0, scale, generator=self._generator)
        return drawn.to(self.dtype if dtype is None else dtype)

    def numbers(self, *shape: int, below: int, dtype: torch.dtype = torch.int64) -> Tensor:
        """Whole numbers from 0 on."""
        size = {"size": shape, "generator": self._generator, "device": self.device}
        return torch.randint(0, below, **size, dtype=dtype)  # type: ignore[call-overload]

    def order(self, count: int) -> Tensor:
        """The numbers below ``count`` in random order, int32."""
        drawn = torch.rand(count, generator=self._generator, device=self.device)
        return drawn.argsort().int()

    def poisoned(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory that shows what is not written."""
        kind = self.dtype if dtype is None else dtype
        return torch.full(shape, float("nan"), device=self.device, dtype=kind)

    def ints(self, values: Sequence[int]) -> Tensor:
        """int32."""
        return torch.tensor(values, device=self.device, dtype=torch.int32)


@dataclass(frozen=True)
class OpCase:
    """``make`` prepares a call; its inputs have the same numbers in every dtype."""

    op: str
    name: str  # what of which model
    rows: int
    make: Callable[[Maker], Work]
    cost: Cost
    limit: float = 8e-3  # of the norm of each result
    weights: str = "bf16"

    @property
    def label(self) -> str:
        return f"{self.op}/{self.name}/{self.weights}/T={self.rows}"
