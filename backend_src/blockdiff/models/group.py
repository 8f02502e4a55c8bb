"""What a model asks of the ranks that share its layers, and the answer when there is only one.

Knows nothing of processes or of transports.
"""

from typing import Protocol

from torch import Tensor


class Group(Protocol):
    """Ranks that run the same rounds on their parts of one model, each on its own device."""

    rank: int
    size: int

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every rank's ``x``, the same bits on all of them; ``x`` may be overwritten."""
        ...

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """Every rank's ``x``, all of one shape, laid end to end along ``dim`` in rank order."""
        ...

    def broadcast(self, x: Tensor) -> Tensor:
        """Rank 0's ``x``; the others' ``x``, of the same shape, is overwritten."""
        ...


class Alone:
    """The group of one: nothing to exchange, nothing to pay for."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        return x

    def broadcast(self, x: Tensor) -> Tensor:
        return x


ALONE = Alone()


class InOrder:
    """Another group whose sums are those of ranks 0, 1, 2 and so on, whatever their shape.

    The group's own order may depend on where in a tensor a number lies.
    """

    def __init__(self, own: Group) -> None:
        self.own = own
        self.rank = own.rank
        self.size = own.size

    def all_reduce(self, x: Tensor) -> Tensor:
        """See ``Group``."""
        first, *others = self.own.all_gather(x.unsqueeze(0), 0).unbind(0)
        for other in others:
            first = first + other
        return first

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        """See ``Group``."""
        return self.own.all_gather(x, dim)

    def broadcast(self, x: Tensor) -> Tensor:
        """See ``Group``."""
        return self.own.broadcast(x)
