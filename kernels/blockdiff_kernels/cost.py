"""What an op must move and compute, whatever the implementation. Knows nothing of devices' speeds.

Bytes are compulsory ones: weights, states, keys and values, inputs and outputs once each.
"""

from typing import NamedTuple


class Cost(NamedTuple):
    """Of one call."""

    bytes: float
    flops: float
    launches: int = 1

    def plus(self, other: "Cost") -> "Cost":
        """Both, one after the other."""
        launches = self.launches + other.launches
        return Cost(self.bytes + other.bytes, self.flops + other.flops, launches)

    def times(self, count: int) -> "Cost":
        """The same ``count`` times."""
        return Cost(self.bytes * count, self.flops * count, self.launches * count)

    def seconds(self, bytes_per_second: float, flops_per_second: float) -> float:
        """The floor: whichever of the two takes longer."""
        return max(self.bytes / bytes_per_second, self.flops / flops_per_second)
