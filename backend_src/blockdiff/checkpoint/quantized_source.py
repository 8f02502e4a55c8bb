"""Weights with quantised projections: stored so, or quantised while they are read.

Both give what ``models.layers.int8`` has for its products where a projection is quantised and what
``DenseSource`` gives elsewhere. Knows nothing of families.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from blockdiff.checkpoint.quantized_names import WEIGHT, QuantizedNames
from blockdiff.checkpoint.regions import Region, whole
from blockdiff.checkpoint.scheme import KINDS, W8A8, Scheme, is_quantisable
from blockdiff.checkpoint.source import DenseSource
from blockdiff.checkpoint.stored import StoredTensor
from blockdiff.errors import ConfigError
from blockdiff.models.expert_layout import ONE_BY_ONE, PARTS, ExpertLayout, layout_below
from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.int8 import INT8_ROWS, WEIGHT_ONLY, Products
from blockdiff.models.layers.linear import DenseLinear, Linear, Span, concat_rows
from blockdiff.models.layers.quantized import QuantizedLinear
from blockdiff.models.source import WHOLE, ExpertNames, Part
from blockdiff_kernels.quantized_linear import dequantize


class QuantizedSource(DenseSource, ABC):
    """A ``WeightSource`` some of whose projections are quantised."""

    products: Products = WEIGHT_ONLY
    """Of the model; settled before anything is read."""

    @abstractmethod
    def is_quantised(self, module: str) -> bool:
        """Whether ``linear`` gives quantised weights for this module."""

    @abstractmethod
    def shape_of(self, module: str) -> tuple[int, int]:
        """Rows and columns of a module that ``is_quantised``."""

    @abstractmethod
    def quantised(self, module: str, region: Region) -> QuantizedLinear:
        """Part of a module that ``is_quantised``, its columns in whole units of ``unit``."""

    @abstractmethod
    def unit(self, module: str) -> int:
        """How many columns of a module that ``is_quantised`` can only be read together."""

    def linear(
        self, module: str, rows: Sequence[Span] | None = None, columns: Span | None = None
    ) -> Linear:
        """See ``WeightSource``; words and groups that a part cuts are read whole."""
        if not self.is_quantised(module):
            return super().linear(module, rows, columns)
        shape = self.shape_of(module)
        spans = [(0, shape[0])] if rows is None else rows
        across = (0, shape[1]) if columns is None else columns
        return concat_rows([self._part(module, Region(shape, span, across)) for span in spans])

    def _part(self, module: str, region: Region) -> QuantizedLinear:
        wide = region.widened(self.unit(module))
        found = self.quantised(module, wide)
        if wide == region:
            return found
        first = region.columns[0] - wide.columns[0]
        return found.columns(first, first + region.width)

    def experts(self, names: ExpertNames, part: Part = WHOLE) -> Experts:
        """See ``WeightSource``; the shared expert stays one, of its own width."""
        rank, ways = part
        each = names.count // ways
        numbers = range(rank * each, (rank + 1) * each)
        shared = () if names.shared is None else _projections(names.shared)
        if not any(map(self.is_quantised, shared)) and not any(
            self.has_quantised(names, number) for number in numbers
        ):
            return super().experts(names, part)
        pairs = [self.routed_expert(names, number) for number in numbers]
        if names.shared is not None:
            pairs.append(self._shared_expert(names.shared, rank, ways))
        gate_up, down = zip(*pairs, strict=True)
        return self.products.experts(gate_up, down, names.activation)

    def has_quantised(self, names: ExpertNames, number: int) -> bool:
        """Whether any projection of a routed expert is quantised."""
        return any(map(self.is_quantised, _projections(f"{names.routed}{number}.")))

    def routed_expert(self, names: ExpertNames, number: int) -> tuple[Linear, Linear]:
        """One expert's gate and up projection, and its down projection."""
        layout = layout_below(self.tensors, names.routed)
        if layout != ONE_BY_ONE:
            return self._stacked_expert(names, layout, number)
        gate, up, down = map(self.linear, _projections(f"{names.routed}{number}."))
        return concat_rows([gate, up]), down

    def _stacked_expert(
        self, names: ExpertNames, layout: ExpertLayout, number: int
    ) -> tuple[Linear, Linear]:
        """Stacks are always stored in high precision."""
        hidden = self._hidden(names)
        gate_up, down = self._zeros(2 * names.inner, hidden), self._zeros(hidden, names.inner)
        self._copy_routed(names, layout, number, (*gate_up.split(names.inner), down))
        return self.numerics.linear(DenseLinear(gate_up)), self.numerics.linear(DenseLinear(down))

    def _shared_expert(self, own: str, rank: int, ways: int) -> tuple[Linear, Linear]:
        width = self._shared_inner(own) // ways
        span = (rank * width, (rank + 1) * width)
        gate_up = concat_rows([self.linear(f"{own}{x}_proj", [span]) for x in ("gate", "up")])
        return gate_up, self.linear(own + "down_proj", columns=span)

    def _shared_inner(self, own: str) -> int:
        """Inner channels of a shared expert."""
        name = own + "gate_proj"
        if self.is_quantised(name):
            return self.shape_of(name)[0]
        return self.tensors[name + WEIGHT].shape[0]


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

    def shape_of(self, module: str) -> tuple[int, int]:
        """See ``QuantizedSource``."""
        rows, columns = self.names.modules[module]
        return rows, columns

    def unit(self, module: str) -> int:
        """See ``QuantizedSource``."""
        return self.names.format.unit(self.shape_of(module)[1])

    def quantised(self, module: str, region: Region) -> QuantizedLinear:
        """See ``QuantizedSource``; ConfigError for values that cannot be."""
        values, scale = self._decode(module, region)
        return self.products.linear(values.to(self.device), scale.to(self.device))

    def tensor(self, name: str, rows: Sequence[Span] | None = None) -> Tensor:
        """See ``WeightSource``: a router or a head that is stored quantised is dequantised."""
        module = name.removesuffix(WEIGHT)
        if not self.is_quantised(module):
            return super().tensor(name, rows)
        all_of_it = whole(self.shape_of(module))
        regions = [replace(all_of_it, rows=span) for span in rows or [all_of_it.rows]]
        weight = torch.cat([dequantize(*self._decode(module, region)) for region in regions])
        kind = torch.float32 if name.endswith(self.float32) else self.dtype
        return weight.to(device=self.device, dtype=kind)

    def _decode(self, module: str, region: Region) -> tuple[Tensor, Tensor]:
        tensors = {}
        for end, part in self.names.format.parts(*region.shape).items():
            stored = self.stored.get(f"{module}.{end}")
            if stored is not None:
                tensors[end] = stored.read(region.place(part.steps, stored.shape))
        values, scale = self.names.format.decode(module, tensors, region)
        if not bool(scale.isfinite().all()):
            raise ConfigError(f"checkpoint: a scale of {module} is not a finite number")
        return values, scale


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

    def shape_of(self, module: str) -> tuple[int, int]:
        """See ``QuantizedSource``."""
        rows, columns = self.stored[module + WEIGHT].shape
        return rows, columns

    def unit(self, module: str) -> int:
        """See ``QuantizedSource``."""
        return self.scheme.unit(module, self.shape_of(module)[1])

    def quantised(self, module: str, region: Region) -> QuantizedLinear:
        """See ``QuantizedSource``."""
        weight = self.stored[module + WEIGHT].read((slice(*region.rows), slice(*region.columns)))
        return self._quantise(module, weight, self.unit(module))

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
            module = f"{names.routed}{number}.{part}"
            found.append(self._quantise(module, weight, self.scheme.unit(module, weight.shape[1])))
        return concat_rows(found[:2]), found[2]

    def _quantise(self, module: str, weight: Tensor, unit: int) -> QuantizedLinear:
        values, scale = self.scheme.quantise(module, weight, unit)
        return self.products.linear(values.to(self.device), scale.to(self.device))


def _projections(own: str) -> list[str]:
    """The modules of one expert."""
    return [own + part for part in PARTS]


Options = tuple[Mapping[str, StoredTensor], torch.device, torch.dtype, tuple[str, ...]]


def make_source(names: QuantizedNames | None, dtype: str, options: Options) -> DenseSource:
    """The source for weights stored as ``names`` says, or quantised to ``dtype`` if it is one."""
    source: QuantizedSource
    if names is not None:
        source = StoredQuantizedSource(names, *options)
    elif dtype in (*KINDS, W8A8):
        if not any(is_quantisable(n.removesuffix(WEIGHT), t.shape) for n, t in options[0].items()):
            raise ConfigError(f"dtype is {dtype!r}, but this model has no projections to quantise")
        source = QuantizingSource(Scheme("int8" if dtype == W8A8 else dtype), *options)
    else:
        return DenseSource(*options)
    if dtype == W8A8:
        source.products = INT8_ROWS
    return source
