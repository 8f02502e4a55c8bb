"""Caches of a model, by page and by state line. Knows nothing of scheduling."""

from blockdiff.cache.canvas import CanvasCaches, LayerShape, canvas_cache_sizes
from blockdiff.cache.store import (
    KeyValueCaches,
    LayerCaches,
    SlotCaches,
    key_value_sizes,
    slot_cache_sizes,
)

__all__ = [
    "CanvasCaches",
    "KeyValueCaches",
    "LayerCaches",
    "LayerShape",
    "SlotCaches",
    "canvas_cache_sizes",
    "key_value_sizes",
    "slot_cache_sizes",
]
