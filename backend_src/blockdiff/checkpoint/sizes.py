"""What a model object holds: its parts, and its tensors, each memory once.

Knows nothing of families.
"""

from collections.abc import Iterable, Iterator

from torch import Tensor

from blockdiff_kernels.packed import is_packed, packed_bytes


def model_parts(model: object) -> Iterator[object]:
    """Everything reachable from ``model``, each object once."""
    seen: set[int] = set()
    waiting: list[object] = [model]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        if not isinstance(item, Tensor):
            waiting += _parts(item)


def model_tensors(model: object) -> list[Tensor]:
    """Every tensor reachable from ``model``; of tensors that share memory, one."""
    found: dict[int, Tensor] = {}
    for item in model_parts(model):
        if isinstance(item, Tensor):
            # Tensors without memory share an address, but not themselves.
            address = 0 if is_packed(item) else item.untyped_storage().data_ptr()
            found.setdefault(address or id(item), item)
    return list(found.values())


def tensor_bytes(tensor: Tensor) -> int:
    """Memory that a tensor holds on to, also where it shows only a part of it."""
    if is_packed(tensor):
        return packed_bytes(tensor)
    return int(tensor.untyped_storage().nbytes())


def _parts(item: object) -> Iterator[object]:
    if isinstance(item, str | bytes | int | float | type(None)):
        return
    if isinstance(item, dict):
        yield from item.values()
    elif isinstance(item, Iterable):
        yield from item
    else:
        yield from getattr(item, "__dict__", {}).values()
