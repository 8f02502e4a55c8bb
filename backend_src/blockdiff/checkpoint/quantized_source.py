"""Weights with quantised projections: stored so, or quantised while they are read.

Both give ``QuantizedLinear`` and ``ListedExperts`` where a projection is quantised and what
``DenseSource`` gives elsewhere. Knows nothing of families.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from blockdiff.checkpoint.quantized_names import WEIGHT, QuantizedNames
from blockdiff.checkpoint.scheme import KINDS, Scheme, is_quantisable
from blockdiff.checkpoint.source import DenseSource
from blockdiff.checkpoint.stored import StoredTensor
from blockdiff.errors import ConfigError
from blockdiff.models.expert_layout import PARTS, layout_below
from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.linear import Linear, Span, concat_rows
from blockdiff.models.layers.quantized import ListedExperts, QuantizedLinear
from blockdiff.models.source import WHOLE, ExpertNames, Part
from blockdiff_kernels.quantized_linear import dequantize


class QuantizedSource(DenseSource, ABC):
    """A ``WeightSource`` some of whose projections are quantised."""

    @abstractmethod
    def is_quantised(self, module: str) -> bool:
        """Whether ``linear`` gives quantised weights for this module."""

    @abstractmethod
    def quantised(self, module: str) -> QuantizedLinear:
        """The whole projection of a module that ``is_quantised``."""

    def linear(
        self, module: str, rows: Sequence[Span] | None = None, columns: Span | None = None
    ) -> Linear:
        """See ``WeightSource``; a quantised projection is read whole, then cut."""
        if not self.is_quantised(module):
            return super().linear(module, rows, columns)
        whole: Linear = self.quantised(module)
        if rows is not None:
            whole = whole.rows(rows)
        return whole if columns is None else whole.columns(*columns)

    def experts(self, names: ExpertNames, part: Part = WHOLE) -> Experts:
        """See ``WeightSource``; the shared expert stays one, of its own width."""
        rank, ways = part
        each = names.count // ways
        numbers = range(rank * each, (rank + 1) * each)
        if not any(self.has_quantised(names, number) for number in numbers):
            return super().experts(names, part)
        pairs = [self.routed_expert(names, number) for number in numbers]
        if names.shared is not None:
            pairs.append(self._shared_expert(names.shared, rank, ways))
        gate_up, down = zip(*pairs, strict=True)
        return ListedExperts(gate_up, down, names.activation)

    def has_quantised(self, names: ExpertNames, number: int) -> bool:
        """Whether any projection of a routed expert is quantised."""
        own = f"{names.routed}{number}."
        return any(self.is_quantised(f"{own}{x}_proj") for x in ("gate", "up", "down"))

    def routed_expert(self, names: ExpertNames, number: int) -> tuple[Linear, Linear]:
        """One expert's gate and up projection, and its down projection."""
        own = f"{names.routed}{number}."
        gate_up = concat_rows([self.linear(f"{own}{x}_proj") for x in ("gate", "up")])
        return gate_up, self.linear(own + "down_proj")

    def _shared_expert(self, own: str, rank: int, ways: int) -> tuple[Linear, Linear]:
        width = self._shared_inner(own) // ways
        span = (rank * width, (rank + 1) * width)
        gate_up = concat_rows([self.linear(f"{own}{x}_proj", [span]) for x in ("gate", "up")])
        return gate_up, self.linear(own + "down_proj", columns=span)

    @abstractmethod
    def _shared_inner(self, own: str) -> int:
        """Inner channels of a shared expert."""


class StoredQuantizedSource(QuantizedSource):
    """Projections that the checkpoint stores quantised."""

    def __init__(
        self,
        names: QuantizedNames,
        tensors: Mapping[str, StoredTensor],
        device: torch.device,
        dtype: torch.dtype,
        float32: tuple[str, ...] = (),
    ) -> None:
        """As ``DenseSource``; ``tensors`` are the plain ones and those of ``names``."""
        super().__init__(tensors, device, dtype, float32)
        self.stored = tensors
        self.names = names

    def is_quantised(self, module: str) -> bool:
        """See ``QuantizedSource``."""
        return module in self.names.modules

    def quantised(self, module: str) -> QuantizedLinear:
        """See ``QuantizedSource``; ConfigError for values that cannot be."""
        values, scale = self._decode(module)
        return QuantizedLinear(values.to(self.device), scale.to(self.device))

    def tensor(self, name: str, rows: Sequence[Span] | None = None) -> Tensor:
        """See ``WeightSource``: a router or a head that is stored quantised is dequantised."""
        module = name.removesuffix(WEIGHT)
        if not self.is_quantised(module):
            return super().tensor(name, rows)
        weight = dequantize(*self._decode(module))
        if rows is not None:
            weight = torch.cat([weight[start:stop] for start, stop in rows])
        kind = torch.float32 if name.endswith(self.float32) else self.dtype
        return weight.to(device=self.device, dtype=kind)

    def _decode(self, module: str) -> tuple[Tensor, Tensor]:
        shape = self.names.modules[module]
        tensors = {
            end: self.stored[f"{module}.{end}"].read()
            for end in self.names.format.parts(*shape)
            if f"{module}.{end}" in self.tensors
        }
        values, scale = self.names.format.decode(module, tensors, shape[1])
        if not bool(scale.isfinite().all()):
            raise ConfigError(f"checkpoint: a scale of {module} is not a finite number")
        return values, scale

    def _shared_inner(self, own: str) -> int:
        name = own + "gate_proj"
        return self.names.modules[name][0] if self.is_quantised(name) else self._rows(name)

    def _rows(self, module: str) -> int:
        return self.tensors[module + WEIGHT].shape[0]


class QuantizingSource(QuantizedSource):
    """Projections in high precision on disk, quantised one by one as they are asked for."""

    def __init__(
        self,
        scheme: Scheme,
        tensors: Mapping[str, StoredTensor],
        device: torch.device,
        dtype: torch.dtype,
        float32: tuple[str, ...] = (),
    ) -> None:
        """As ``DenseSource``; projections become what ``scheme`` says."""
        super().__init__(tensors, device, dtype, float32)
        self.stored = tensors
        self.scheme = scheme

    def is_quantised(self, module: str) -> bool:
        """See ``QuantizedSource``."""
        stored = self.tensors.get(module + WEIGHT)
        return stored is not None and is_quantisable(module, stored.shape)

    def quantised(self, module: str) -> QuantizedLinear:
        """See ``QuantizedSource``."""
        return self._quantise(module, self.stored[module + WEIGHT].read())

    def has_quantised(self, names: ExpertNames, number: int) -> bool:
        """Experts are, in either layout."""
        return True

    def routed_expert(self, names: ExpertNames, number: int) -> tuple[Linear, Linear]:
        """See ``QuantizedSource``; stacked experts are read one at a time."""
        found = []
        layout = layout_below(self.tensors, names.routed)
        for piece, part in zip(layout.pieces(number, names.inner), PARTS, strict=True):
            weight = self.stored[names.routed + piece.name].read(piece.place)
            weight = weight[0] if piece.place else weight
            found.append(self._quantise(f"{names.routed}{number}.{part}", weight))
        return concat_rows(found[:2]), found[2]

    def _quantise(self, module: str, weight: Tensor) -> QuantizedLinear:
        values, scale = self.scheme.quantise(module, weight)
        return QuantizedLinear(values.to(self.device), scale.to(self.device))

    def _shared_inner(self, own: str) -> int:
        return self.tensors[own + "gate_proj.weight"].shape[0]


Options = tuple[Mapping[str, StoredTensor], torch.device, torch.dtype, tuple[str, ...]]


def make_source(names: QuantizedNames | None, dtype: str, options: Options) -> DenseSource:
    """The source for weights stored as ``names`` says, or quantised to ``dtype`` if it is one."""
    if names is not None:
        return StoredQuantizedSource(names, *options)
    if dtype in KINDS:
        if not any(is_quantisable(n.removesuffix(WEIGHT), t.shape) for n, t in options[0].items()):
            raise ConfigError(f"dtype is {dtype!r}, but this model has no projections to quantise")
        return QuantizingSource(Scheme(dtype), *options)
    return DenseSource(*options)
