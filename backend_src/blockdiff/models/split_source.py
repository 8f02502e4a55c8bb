"""One rank's part of the weights, in the place of the whole model's source.

Families ask for tensors by name as ever and get the rank's rows, columns and experts. Knows
nothing of files or of how weights are stored.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from blockdiff.errors import ConfigError
from blockdiff.models.cuts import Cut, find_cut, make_cuts
from blockdiff.models.layers.experts import Experts
from blockdiff.models.layers.linear import Linear, Span
from blockdiff.models.share import Share
from blockdiff.models.source import WHOLE, ExpertNames, Part, WeightSource
from blockdiff_kernels.moe.stacks import ExpertWeights


class SplitExperts(Experts):
    """Experts by their numbers in the whole layer, of which only a part is here.

    The routed ones of this rank come first in ``own``, this rank's part of the shared one follows.
    """

    def __init__(self, own: Experts, routed: int, span: Span) -> None:
        """``routed`` experts in the whole layer, numbers ``span`` of them in ``own``."""
        self.own = own
        self.routed = routed
        self.span = self.routed_here = span
        self.elsewhere = routed - (span[1] - span[0])
        self.count = own.count + self.elsewhere

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """The summand of this rank's experts: x [R, H] -> [R, H]."""
        start, stop = self.span
        here = torch.where((ids >= start) & (ids < stop), ids - start, self.own.count)
        return self.own(x, weights, torch.where(ids < self.routed, here, ids - self.elsewhere))

    def for_kernels(self) -> ExpertWeights | None:
        """See ``Experts``."""
        return self.own.for_kernels()

    def prefers_all(self, rows: int) -> bool:
        """Whether ``weigh_all`` is the faster way for so many rows."""
        return self.own.prefers_all(rows)

    def weigh_all(self, x: Tensor, weights: Tensor) -> Tensor:
        """The same with weights [R, count] of every expert, zero where not chosen."""
        start, stop = self.span
        return self.own.weigh_all(
            x, torch.cat((weights[:, start:stop], weights[:, self.routed :]), dim=1)
        )


class SplitSource:
    """A ``WeightSource`` that reads this rank's share of another."""

    def __init__(self, whole: WeightSource, share: Share) -> None:
        self.whole = whole
        self.share = share
        self.cuts = make_cuts(share)
        self.numerics = whole.numerics

    def tensor(self, name: str, rows: Sequence[Span] | None = None) -> Tensor:
        """See ``WeightSource``."""
        assert rows is None, "a part of a part is not needed"
        cut = self._cut(name)
        assert cut.columns is None, name
        return self.whole.tensor(name, cut.rows)

    def linear(
        self, module: str, rows: Sequence[Span] | None = None, columns: Span | None = None
    ) -> Linear:
        """See ``WeightSource``."""
        assert rows is None and columns is None, "a part of a part is not needed"
        cut = self._cut(module + ".weight")
        return self.whole.linear(module, cut.rows, cut.columns)

    def experts(self, names: ExpertNames, part: Part = WHOLE) -> SplitExperts:
        """See ``WeightSource``; numbers are still those of the whole layer."""
        assert part == WHOLE, "a part of a part is not needed"
        group = self.share.group
        own = self.whole.experts(names, (group.rank, group.size))
        return SplitExperts(own, names.count, self.share.equal(names.count))

    def _cut(self, name: str) -> Cut:
        cut = find_cut(self.cuts, name)
        if cut is None:
            raise ConfigError(f"tensor_parallel: {name} cannot be split yet; use tensor_parallel 1")
        return cut
