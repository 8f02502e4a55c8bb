"""Weights of a checkpoint in high precision, read tensor by tensor and only as far as needed.

Knows stored names and layouts of experts; knows nothing of families.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from blockdiff.checkpoint.reader import StoredTensor
from blockdiff.models.layers.experts import DenseExperts
from blockdiff.models.layers.linear import DenseLinear, Span
from blockdiff.models.source import WHOLE, ExpertNames, Part

Progress = Callable[[int, int], None]


class DenseSource:
    """A ``WeightSource`` whose projections are matrices in ``dtype``."""

    def __init__(
        self,
        tensors: Mapping[str, StoredTensor],
        device: torch.device,
        dtype: torch.dtype,
        float32: tuple[str, ...] = (),
        progress: Progress | None = None,
    ) -> None:
        """``tensors`` are exactly those of the model; ``float32`` are ends of names kept so.

        ``progress`` is called with (tensors begun, tensors in all).
        """
        self.tensors = tensors
        self.device = device
        self.dtype = dtype
        self.float32 = float32
        self._progress = progress
        self.bytes_read = 0
        self._begun: set[str] = set()

    def tensor(self, name: str, rows: Sequence[Span] | None = None) -> Tensor:
        """See ``WeightSource``."""
        kind = torch.float32 if name.endswith(self.float32) else self.dtype
        return self._cut(name, rows).to(device=self.device, dtype=kind)

    def linear(
        self, module: str, rows: Sequence[Span] | None = None, columns: Span | None = None
    ) -> DenseLinear:
        """See ``WeightSource``."""
        weight = self._cut(module + ".weight", rows, columns)
        return DenseLinear(weight.to(device=self.device, dtype=self.dtype))

    def experts(self, names: ExpertNames, part: Part = WHOLE) -> DenseExperts:
        """See ``WeightSource``."""
        rank, ways = part
        count, width = names.count // ways, names.inner
        shared = self._shared_width(names) // ways
        total, hidden = count + -(-shared // width), self._hidden(names)
        gate_up = self._zeros(total, 2 * width, hidden)
        down = self._zeros(total, width, hidden)
        for index in range(count):
            self._copy_routed(names, rank * count + index, gate_up[index], down[index])
        for index, offset in enumerate(range(0, shared, width), start=count):
            start, stop = rank * shared + offset, rank * shared + min(offset + width, shared)
            self._copy_parts(f"{names.shared}", (start, stop), gate_up[index], down[index])
        return DenseExperts(gate_up, down, names.activation)

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape, device=self.device, dtype=self.dtype)

    def _cut(self, name: str, rows: Sequence[Span] | None, columns: Span | None = None) -> Tensor:
        """Part of a matrix: the spans of its rows laid end to end, one span of its columns."""
        across = slice(None) if columns is None else slice(*columns)
        if rows is None:
            return self._read(name, () if columns is None else (slice(None), across))
        down = [slice(*span) for span in rows]
        parts = [self._read(name, (own,) if columns is None else (own, across)) for own in down]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _read(self, name: str, place: tuple[slice, ...] = ()) -> Tensor:
        """The stored tensor ``name``, or the ``place`` in it, on the CPU."""
        if name not in self._begun:
            self._begun.add(name)
            if self._progress is not None:
                self._progress(len(self._begun), len(self.tensors))
        tensor = self.tensors[name].read(place)
        self.bytes_read += tensor.nbytes
        return tensor

    def _copy_routed(self, names: ExpertNames, expert: int, gate_up: Tensor, down: Tensor) -> None:
        """One routed expert into gate_up [2I, H] and down [I, H]."""
        if names.routed + "gate_up_proj" not in self.tensors:
            self._copy_parts(f"{names.routed}{expert}.", (0, names.inner), gate_up, down)
            return
        own = (slice(expert, expert + 1),)
        gate_up.copy_(self._read(names.routed + "gate_up_proj", own)[0])
        down.copy_(self._read(names.routed + "down_proj", own)[0].t())

    def _copy_parts(self, own: str, span: Span, gate_up: Tensor, down: Tensor) -> None:
        """Separate gate, up and down projections; a short span leaves zeros behind it."""
        width, count = down.shape[0], span[1] - span[0]
        gate_up[:count] = self._cut(own + "gate_proj.weight", [span])
        gate_up[width : width + count] = self._cut(own + "up_proj.weight", [span])
        down[:count] = self._cut(own + "down_proj.weight", None, span).t()

    def _shared_width(self, names: ExpertNames) -> int:
        if names.shared is None:
            return 0
        return self.tensors[names.shared + "gate_proj.weight"].shape[0]

    def _hidden(self, names: ExpertNames) -> int:
        stacked = self.tensors.get(names.routed + "gate_up_proj")
        return (stacked or self.tensors[f"{names.routed}0.gate_proj.weight"]).shape[-1]
