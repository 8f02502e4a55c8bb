"""Weights of a checkpoint in high precision, read tensor by tensor and only as far as needed.

Knows stored names and layouts of experts; knows nothing of families.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from blockdiff.models.expert_layout import ExpertLayout, layout_below
from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.linear import DenseLinear, Linear, Span
from blockdiff.models.numerics import PLAIN, Numerics
from blockdiff.models.source import WHOLE, ExpertNames, Part


class Stored(Protocol):
    """A tensor somewhere else; ``checkpoint.stored`` has the real one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read_into(self, target: Tensor, place: tuple[slice, ...] = ()) -> None:
        """Write the tensor, or the ``place`` in it, to ``target``: any dtype, strides, device."""


class DenseSource:
    """A ``WeightSource`` whose projections are matrices in ``dtype``."""

    numerics: Numerics = PLAIN
    """Of the model; what it makes of projections and experts is settled when they are read."""

    def __init__(
        self,
        tensors: Mapping[str, Stored],
        device: torch.device,
        dtype: torch.dtype,
        float32: tuple[str, ...] = (),
    ) -> None:
        """``tensors`` are exactly those of the model; ``float32`` are ends of names kept so."""
        self.tensors = tensors
        self.device = device
        self.dtype = dtype
        self.float32 = float32

    def tensor(self, name: str, rows: Sequence[Span] | None = None) -> Tensor:
        """See ``WeightSource``."""
        kind = torch.float32 if name.endswith(self.float32) else self.dtype
        return self._cut(name, rows, None, kind)

    def linear(
        self, module: str, rows: Sequence[Span] | None = None, columns: Span | None = None
    ) -> Linear:
        """See ``WeightSource``."""
        return self.numerics.linear(
            DenseLinear(self._cut(module + ".weight", rows, columns, self.dtype))
        )

    def experts(self, names: ExpertNames, part: Part = WHOLE) -> Experts:
        """See ``WeightSource``."""
        rank, ways = part
        count, width = names.count // ways, names.inner
        shared = self._shared_width(names) // ways
        total, hidden = count + -(-shared // width), self._hidden(names)
        like = torch.empty(0, device=self.device, dtype=self.dtype)
        stack = self.numerics.stack(total, width, hidden, like)
        layout = layout_below(self.tensors, names.routed)
        for index in range(count):
            gate_up, down = stack.place()
            places = (*gate_up.split(width), down.t())
            self._copy_routed(names, layout, rank * count + index, places)
        for offset in range(0, shared, width):
            start, stop = rank * shared + offset, rank * shared + min(offset + width, shared)
            self._copy_parts(f"{names.shared}", (start, stop), *stack.place())
        return stack.finish(names.activation)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self.device, dtype=self.dtype)

    def _cut(
        self, name: str, rows: Sequence[Span] | None, columns: Span | None, kind: torch.dtype
    ) -> Tensor:
        """Part of a matrix: the spans of its rows laid end to end, one span of its columns."""
        stored = self.tensors[name]
        across = () if columns is None else (slice(*columns),)
        shape = list(stored.shape)
        if rows is not None:
            shape[0] = sum(stop - start for start, stop in rows)
        if columns is not None:
            shape[1] = columns[1] - columns[0]
        target = torch.empty(shape, device=self.device, dtype=kind)
        if rows is None:
            stored.read_into(target, (slice(None), *across) if across else ())
            return target
        begin = 0
        for start, stop in rows:
            own = target[begin : begin + stop - start]
            stored.read_into(own, (slice(start, stop), *across))
            begin += stop - start
        return target

    def _copy_routed(
        self, names: ExpertNames, layout: ExpertLayout, expert: int, targets: Sequence[Tensor]
    ) -> None:
        """Gate, up and down projection of one routed expert into ``targets``."""
        for piece, target in zip(layout.pieces(expert, names.inner), targets, strict=True):
            own = target[None] if piece.place else target
            self.tensors[names.routed + piece.name].read_into(own, piece.place)

    def _copy_parts(self, own: str, span: Span, gate_up: Tensor, down: Tensor) -> None:
        """Separate gate, up and down projections; a short span leaves zeros behind it."""
        width, count = down.shape[0], span[1] - span[0]
        up = slice(width, width + count)
        self.tensors[own + "gate_proj.weight"].read_into(gate_up[:count], (slice(*span),))
        self.tensors[own + "up_proj.weight"].read_into(gate_up[up], (slice(*span),))
        narrow = self.tensors[own + "down_proj.weight"]
        narrow.read_into(down[:count].t(), (slice(None), slice(*span)))

    def _shared_width(self, names: ExpertNames) -> int:
        if names.shared is None:
            return 0
        return self.tensors[names.shared + "gate_proj.weight"].shape[0]

    def _hidden(self, names: ExpertNames) -> int:
        layout = layout_below(self.tensors, names.routed)
        gate = layout.pieces(0, names.inner)[0]
        return self.tensors[names.routed + gate.name].shape[-1]
