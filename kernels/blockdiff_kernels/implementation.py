"""Which implementation of an op runs: its definition, the CPU's fast path or Triton kernels.

A choice of the process, as torch's own backend switches are: made before models are loaded, by a
flag, never while they compute. Knows the names of ops; knows nothing of what they compute.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

VARIABLE = "BLOCKDIFF_KERNELS"
AUTO = "auto"
EVERY = "*"

OPS = (
    "attention",
    "block_softmax",
    "conv",
    "denoise",
    "embedding",
    "gated_delta",
    "head",
    "moe",
    "norm",
    "projection",
    "quantized_linear",
    "rope",
    "self_conditioning",
)


class Implementation(str, Enum):
    REFERENCE = "reference"
    CPU = "cpu"
    TRITON = "triton"

    def __str__(self) -> str:
        return str(self.value)


REFERENCE, CPU, TRITON = Implementation

Choices = Mapping[str, Implementation]


@lru_cache(maxsize=64)
def parse_choices(text: str) -> Choices:
    """Choices by op from ``auto``, one implementation for all ops, or ``op=implementation,...``.

    One part without an op, in any place, is for all ops that no other part names. Raises
    ValueError, one line with the part and what is allowed.
    """
    named: dict[str, str] = {}
    for part in (part.strip() for part in text.split(",")) if text.strip() else ():
        op, equals, name = part.rpartition("=")
        op = op if equals else EVERY
        if equals and op not in OPS:
            raise ValueError(f"{part!r}: no such op; one of {', '.join(OPS)}")
        if name not in (AUTO, *Implementation):
            allowed = ", ".join((AUTO, *Implementation))
            raise ValueError(f"{part!r}: no such implementation; one of {allowed}")
        if op in named:
            what = op if equals else "the ops that are not named"
            raise ValueError(f"{part!r}: a second choice for {what}; give one")
        named[op] = name
    every = named.pop(EVERY, AUTO)
    if AUTO in named.values():
        named = {**dict.fromkeys(OPS, every), **named}
    else:
        named[EVERY] = every
    chosen = {op: Implementation(name) for op, name in named.items() if name != AUTO}
    return MappingProxyType(chosen)


def spell_choices(choices: Choices) -> str:
    """A text that ``parse_choices`` makes the same choices of."""
    parts = sorted(choices.items(), key=lambda item: item[0] != EVERY)
    return ",".join(str(own) if op == EVERY else f"{op}={own}" for op, own in parts) or AUTO


_choices: Choices | None = None


def current_choices() -> Choices:
    """Those that were set, or else the variable's; ValueError where it makes no sense."""
    return parse_choices(os.environ.get(VARIABLE, AUTO)) if _choices is None else _choices


def set_choices(choices: Choices | None) -> None:
    """Use ``choices`` from now on; before a model is loaded, as weights are prepared for them.

    None: the variable's.
    """
    global _choices
    _choices = choices


@contextmanager
def using(text: str) -> Iterator[None]:
    """Use the choices of ``text`` inside, for tests and comparisons."""
    before = _choices
    set_choices(parse_choices(text))
    try:
        yield
    finally:
        set_choices(before)


def choose(
    op: str, device: "torch.device", available: tuple[Implementation, ...] = (REFERENCE, TRITON)
) -> Implementation:
    """The implementation of ``op`` for tensors of ``device``.

    Unless something else was asked for, Triton kernels on a GPU and the fast path on a CPU. What an
    op has no own implementation for is computed by its definition.
    """
    assert op in OPS, op
    wanted = wanted_for(op, device.type)
    return wanted if wanted in available else REFERENCE


def wanted_for(op: str, device_type: str) -> Implementation:
    """The implementation to take for ``op`` on cpu or cuda if there is one; meta stands for cpu."""
    choices = current_choices()
    wanted = choices.get(op, choices.get(EVERY))
    return wanted or (CPU if device_type in ("cpu", "meta") else TRITON)
