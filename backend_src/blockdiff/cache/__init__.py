"""Caches of a model, by slot. Knows nothing of scheduling."""

from blockdiff.cache.canvas import CanvasCaches, LayerShape
from blockdiff.cache.store import KeyValueCaches, LayerCaches, SlotCaches

__all__ = ["CanvasCaches", "KeyValueCaches", "LayerCaches", "LayerShape", "SlotCaches"]
