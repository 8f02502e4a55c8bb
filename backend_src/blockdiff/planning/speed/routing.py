"""How many experts the rows of a round use, as far as chance tells. Knows nothing of bytes."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Routing:
    """Each row draws its experts uniformly and independently, unless something is known."""

    diversity: float = 1.0
    """As many independent draws as this share of the rows: rows of a block are alike."""
    coreset: int | None = None
    """Experts that the rows of a block draw from, another such set for each block."""

    def distinct(self, count: int, chosen: int, blocks: int, rows: int) -> float:
        """Expected experts, of ``count``, that ``blocks`` blocks of ``rows`` rows use."""
        draws = rows * self.diversity
        if self.coreset is None or self.coreset >= count:
            return expected_distinct(count, chosen, blocks * draws)
        own = expected_distinct(self.coreset, min(chosen, self.coreset), draws)
        return expected_distinct(count, own, blocks)


def expected_distinct(count: float, chosen: float, draws: float) -> float:
    """E (1 - (1 - k/E)^T): of ``count``, with T ``draws`` of ``chosen`` different ones each."""
    return count * (1.0 - (1.0 - chosen / count) ** draws)


def union(count: float, one: float, other: float) -> float:
    """Expected experts of two independent sets together."""
    return count * (1.0 - (1.0 - one / count) * (1.0 - other / count))
