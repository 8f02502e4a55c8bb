"""Linear projections as objects, whatever their weights are stored as.

Knows how to multiply, cut and join weights; knows nothing of layers or of checkpoints.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from blockdiff_kernels.implementation import TRITON, choose
from blockdiff_kernels.projection import Plain, Source, projection

if TYPE_CHECKING:
    from typing_extensions import Self

# start, stop
Span = tuple[int, int]


class Linear(ABC):
    """y = W x without a bias, W [out_features, in_features]. Never changed once made."""

    out_features: int
    in_features: int

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """x [R, in] -> [R, out] in the dtype of ``x``."""

    def of(self, source: Source, residual: Tensor | None = None) -> Tensor:
        """``residual`` [R, out], if given, plus the projection of the source's rows [R, in]."""
        y = self(source.rows())
        return y if residual is None else residual + y

    def write(self, y: Tensor, source: Source, residual: Tensor | None = None) -> None:
        """``of`` into ``y`` [R, out], which may be columns of a wider tensor."""
        y.copy_(self.of(source, residual))

    @abstractmethod
    def rows(self, spans: Sequence[Span]) -> "Linear":
        """The outputs of ``spans``, laid end to end."""

    @abstractmethod
    def columns(self, start: int, stop: int) -> "Linear":
        """The part of the product that inputs ``start`` to ``stop`` contribute."""

    @abstractmethod
    def join(self, others: Sequence["Self"]) -> "Self":
        """One projection with the outputs of this one, then those of ``others``, of its kind."""

    @property
    def kind(self) -> object:
        """Projections of equal kind can be joined."""
        return type(self)


class DenseLinear(Linear):
    """The weight as one matrix [out, in], in the dtype that activations have."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.out_features, self.in_features = weight.shape

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, in] -> [R, out]."""
        return projection(Plain(x), self.weight)

    def of(self, source: Source, residual: Tensor | None = None) -> Tensor:
        """See ``Linear``."""
        return projection(source, self.weight, residual)

    def write(self, y: Tensor, source: Source, residual: Tensor | None = None) -> None:
        """See ``Linear``."""
        projection(source, self.weight, residual, y)

    def rows(self, spans: Sequence[Span]) -> "DenseLinear":
        """The outputs of ``spans``, laid end to end; a single span shares memory."""
        parts = [self.weight[start:stop] for start, stop in spans]
        return DenseLinear(parts[0] if len(parts) == 1 else torch.cat(parts))

    def columns(self, start: int, stop: int) -> "DenseLinear":
        """The part of the product that inputs ``start`` to ``stop`` contribute."""
        return DenseLinear(self.weight[:, start:stop].contiguous())

    def join(self, others: Sequence["DenseLinear"]) -> "DenseLinear":
        """One projection with the outputs of this one, then those of ``others``."""
        return DenseLinear(torch.cat([self.weight, *(other.weight for other in others)]))


class StackedLinear(Linear):
    """Projections of different kinds that read the same input, their outputs side by side."""

    def __init__(self, parts: Sequence[Linear]) -> None:
        self.parts = tuple(parts)
        self.in_features = self.parts[0].in_features
        self.out_features = sum(part.out_features for part in self.parts)

    def __call__(self, x: Tensor) -> Tensor:
        """x [R, in] -> [R, out]."""
        return torch.cat([part(x) for part in self.parts], dim=-1)

    def of(self, source: Source, residual: Tensor | None = None) -> Tensor:
        """See ``Linear``; where kernels compute sources, every part's does."""
        like = source.like
        if choose("projection", like.device) is not TRITON:
            return super().of(source, residual)
        y = like.new_empty(like.shape[0], self.out_features)
        start = 0
        for part in self.parts:
            columns = slice(start, start + part.out_features)
            own = None if residual is None else residual[:, columns]
            part.write(y[:, columns], source, own)
            start += part.out_features
        return y

    def rows(self, spans: Sequence[Span]) -> Linear:
        """The outputs of ``spans``, laid end to end."""
        found = []
        for start, stop in spans:
            for part in self.parts:
                own = (max(start, 0), min(stop, part.out_features))
                if own[0] < own[1]:
                    found.append(part.rows([own]))
                start, stop = start - part.out_features, stop - part.out_features
        return concat_rows(found)

    def columns(self, start: int, stop: int) -> "StackedLinear":
        """The part of the product that inputs ``start`` to ``stop`` contribute."""
        return StackedLinear([part.columns(start, stop) for part in self.parts])

    def join(self, others: Sequence["StackedLinear"]) -> "StackedLinear":
        """One projection with the outputs of this one, then those of ``others``."""
        return StackedLinear([*self.parts, *(part for other in others for part in other.parts)])


def concat_rows(parts: Sequence[Linear]) -> Linear:
    """One projection with the outputs of all ``parts`` in order; equal kinds become one product."""
    assert parts, "a projection has outputs"
    flat = [
        p for part in parts for p in (part.parts if isinstance(part, StackedLinear) else [part])
    ]
    joined: list[Linear] = []
    for _, same in groupby(flat, key=lambda part: part.kind):
        first, *rest = same
        joined.append(first.join(rest) if rest else first)
    return joined[0] if len(joined) == 1 else StackedLinear(joined)
