"""Kernels under test run interpreted and get memory that shows whatever they do not write."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor


@pytest.fixture(autouse=True)
def _poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch.empty and its kin are filled: nan, or the largest integer."""
    for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
        monkeypatch.setattr(owner, name, _poisoning(getattr(owner, name)))
    yield


def _poisoning(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **named: _poison(plain(*args, **named))


def _poison(tensor: Tensor) -> Tensor:
    if tensor.is_meta or not tensor.numel():
        return tensor
    if tensor.dtype.is_floating_point:
        return tensor.fill_(float("nan"))
    return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)
