"""How much memory a loaded model's weights take. Knows tensors, not what they are for."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor


def weight_bytes(model: object) -> int:
    """Bytes of all tensors that ``model`` holds, each memory once; caches are not the model's."""
    storages: dict[int, int] = {}
    _collect(model, storages, set())
    return sum(storages.values())


def _collect(found: Any, storages: dict[int, int], seen: set[int]) -> None:
    if id(found) in seen:
        return
    seen.add(id(found))
    if isinstance(found, Tensor):
        storage = found.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    elif isinstance(found, Mapping):
        for value in found.values():
            _collect(value, storages, seen)
    elif isinstance(found, list | tuple):
        for value in found:
            _collect(value, storages, seen)
    elif hasattr(found, "__dict__") and not isinstance(found, type):
        for value in vars(found).values():
            _collect(value, storages, seen)
