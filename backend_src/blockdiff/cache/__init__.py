"""Caches of a model, by page and by state line. Knows nothing of scheduling."""

from blockdiff.cache.canvas import CanvasCaches, LayerShape, canvas_cache_sizes
from blockdiff.cache.store import (
    GridCaches,
    KeyValueCaches,
    LayerCaches,
    SlotCaches,
    kept_rows,
    key_value_sizes,
    slot_cache_sizes,
)

__all__ = [
    "CanvasCaches",
    "GridCaches",
    "KeyValueCaches",
    "LayerCaches",
    "LayerShape",
    "SlotCaches",
    "canvas_cache_sizes",
    "kept_rows",
    "key_value_sizes",
    "slot_cache_sizes",
]
