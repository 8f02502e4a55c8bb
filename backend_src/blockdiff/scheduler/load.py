"""Load-aware decoding: how far thresholds and step caps give way when requests queue up.

Knows nothing of slots, requests or of where the pressure comes from.
"""

import math
from dataclasses import dataclass

from blockdiff.errors import ConfigError


@dataclass(frozen=True)
class LoadAware:
    """Bounds for elastic requests. Pressure p runs from 0 (nobody waits) to 1.

    A block that opens at pressure p has the threshold ``own - p * (own - lowest_threshold)`` and at
    most ``round(own * (1 - p * (1 - fewest_steps_share)))`` steps: linear in p from the request's
    own value to a bound. A threshold below the bound stays as it is, and one step is the least.
    """

    lowest_threshold: float = 0.7
    fewest_steps_share: float = 0.5
    """Of the request's own number of steps."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.lowest_threshold <= 1.0:
            raise ConfigError(
                f"lowest_threshold: {self.lowest_threshold} is out of range; allowed are 0 to 1"
            )
        if not 0.0 < self.fewest_steps_share <= 1.0:
            raise ConfigError(
                f"fewest_steps_share: {self.fewest_steps_share} is out of range; "
                "allowed are more than 0 and up to 1"
            )

    def threshold(self, own: float, pressure: float) -> float:
        """Threshold of a block that opens at ``pressure``; infinity (none) stays."""
        if not math.isfinite(own):
            return own
        return own - pressure * max(own - self.lowest_threshold, 0.0)

    def steps(self, own: int, pressure: float) -> int:
        """Step cap of a block that opens at ``pressure``; 0 (no cap) stays."""
        share = 1.0 - pressure * (1.0 - self.fewest_steps_share)
        return max(round(own * share), 1) if own else 0
