"""Caches of a model, by slot. Knows nothing of scheduling."""

from blockdiff.cache.store import KeyValueCaches, SlotCaches

__all__ = ["KeyValueCaches", "SlotCaches"]
