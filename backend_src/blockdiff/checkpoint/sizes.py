"""The tensors that a model object holds, each memory once. Knows nothing of families."""

from collections.abc import Iterable, Iterator

from torch import Tensor


def model_tensors(model: object) -> list[Tensor]:
    """Every tensor reachable from ``model``; of tensors that share memory, one."""
    found: dict[int, Tensor] = {}
    seen: set[int] = set()
    waiting: list[object] = [model]
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, Tensor):
            # Tensors without memory share an address, but not themselves.
            found.setdefault(item.untyped_storage().data_ptr() or id(item), item)
        else:
            waiting += _parts(item)
    return list(found.values())


def tensor_bytes(tensor: Tensor) -> int:
    """Memory that a tensor holds on to, also where it shows only a part of it."""
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
