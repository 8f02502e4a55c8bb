"""How long requests have been waiting for slots, as one number.

Knows counts, not requests; one update per turn of the engine loop.
"""

# Of the way to the present in one turn: about 30 turns from idle to nine tenths.
WEIGHT = 1 / 14


class Pressure:
    """The share of recent turns in which a request waited while slots were busy, from 0 to 1.

    ``value += WEIGHT * (now - value)`` with ``now`` = busy slots / slots while anybody waits, else
    0. Smooth, so that neither a single waiter nor a free moment moves it far; and not by the number
    of waiters, because a server's own queue shows at most one of them to the engine.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self.value = 0.0

    def update(self, waiting: int, free: int) -> float:
        """Take in one turn's waiting requests and free slots; returns ``value``."""
        busy = min(max(self._slots - free, 0), self._slots)
        now = busy / self._slots if waiting else 0.0
        self.value += WEIGHT * (now - self.value)
        return self.value
