"""The tensors of a quantised copy: their names and shapes first, then their values in pieces.

Neither memory nor result depends on how large a tensor is: rows are quantised by themselves. Knows
nothing of files that are written.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from blockdiff.checkpoint.scheme import Scheme, is_quantisable
from blockdiff.checkpoint.shard_writer import NewTensor
from blockdiff.checkpoint.stored import StoredTensor

PIECE_ELEMENTS = 1 << 20
Tensors = Mapping[str, StoredTensor]


class Piece(NamedTuple):
    """Part of a new tensor, from index ``start`` of its first axis on."""

    name: str
    values: Tensor
    start: int = 0


class _Projection(NamedTuple):
    """A projection to quantise, and where it is stored."""

    module: str
    stored: StoredTensor
    expert: tuple[slice, ...]  # where the stored tensor is a stack of them
    first: int  # row of the stored matrix
    rows: int

    @property
    def columns(self) -> int:
        return self.stored.shape[-1]

    def read(self, start: int, stop: int) -> Tensor:
        """Rows [stop - start, columns] of the projection."""
        rows = self.stored.read((*self.expert, slice(self.first + start, self.first + stop)))
        return rows[0] if self.expert else rows


def quantised_names(tensors: Tensors) -> list[str]:
    """Those of ``tensors``, by canonical name, that hold projections to quantise."""
    return [n for n, t in tensors.items() if is_quantisable(n.removesuffix(".weight"), t.shape)]


def plan_tensors(tensors: Tensors, scheme: Scheme) -> list[NewTensor]:
    """What a quantised copy holds, in the order in which ``convert`` makes it."""
    found: list[NewTensor] = []
    quantised = set(quantised_names(tensors))
    for name, stored in sorted(tensors.items()):
        if name not in quantised:
            found.append(NewTensor(stored.stored_name, stored.dtype, stored.shape))
            continue
        for projection in _projections(stored):
            found += _new_tensors(projection, scheme)
    return found


def convert(stored: StoredTensor, name: str, scheme: Scheme) -> Iterator[Piece]:
    """The new tensors' values that come from the stored tensor of this canonical name."""
    if not is_quantisable(name.removesuffix(".weight"), stored.shape):
        yield from _copy(stored)
        return
    for projection in _projections(stored):
        yield from _quantise(projection, scheme)


def _projections(stored: StoredTensor) -> Iterator[_Projection]:
    """Experts one by one, since the format has no stacks of them."""
    full = stored.stored_name.removesuffix(".weight")
    if len(stored.shape) == 2:
        yield _Projection(full, stored, (), 0, stored.shape[0])
        return
    before, _, kind = full.rpartition(".")
    parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
    count, height, _ = stored.shape
    rows = height // len(parts)
    for number in range(count):
        expert = (slice(number, number + 1),)
        for index, part in enumerate(parts):
            yield _Projection(f"{before}.{number}.{part}", stored, expert, index * rows, rows)


def _new_tensors(own: _Projection, scheme: Scheme) -> list[NewTensor]:
    groups = own.columns // scheme.unit(own.module, own.columns)
    scale = NewTensor(f"{own.module}.weight_scale", "BF16", (own.rows, groups))
    if scheme.kind != "int4":
        dtype = "F8_E4M3" if scheme.kind == "fp8" else "I8"
        return [scale, NewTensor(f"{own.module}.weight", dtype, (own.rows, own.columns))]
    packed = NewTensor(f"{own.module}.weight_packed", "I32", (own.rows, own.columns // 8))
    return [scale, packed, NewTensor(f"{own.module}.weight_shape", "I64", (2,))]


def _quantise(own: _Projection, scheme: Scheme) -> Iterator[Piece]:
    module, unit = own.module, scheme.unit(own.module, own.columns)
    for start, stop in _spans(own.rows, own.columns):
        values, scale = scheme.quantise(module, own.read(start, stop), unit)
        yield Piece(f"{module}.weight_scale", scale.bfloat16(), start)
        if scheme.kind == "int4":
            yield Piece(f"{module}.weight_packed", values.view(torch.int32), start)
        else:
            yield Piece(f"{module}.weight", values, start)
    if scheme.kind == "int4":
        yield Piece(f"{module}.weight_shape", torch.tensor([own.rows, own.columns]))


def _copy(stored: StoredTensor) -> Iterator[Piece]:
    if not stored.shape:
        yield Piece(stored.stored_name, stored.read())
        return
    for start, stop in _spans(stored.shape[0], math.prod(stored.shape[1:])):
        yield Piece(stored.stored_name, stored.read((slice(start, stop),)), start)


def _spans(rows: int, width: int) -> Iterator[tuple[int, int]]:
    """All rows, in pieces of about PIECE_ELEMENTS."""
    step = max(1, PIECE_ELEMENTS // max(width, 1))
    for start in range(0, rows, step):
        yield start, min(start + step, rows)
