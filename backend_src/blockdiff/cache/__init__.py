"""Caches of a model, by slot. Knows nothing of scheduling."""

from blockdiff.cache.store import SlotCaches

__all__ = ["SlotCaches"]
