"""From kernels and rates to forwards and tokens a second, and to what one token at a time takes.

A ceiling: every kernel takes the longer of its bytes and its operations at the device's full
rates, one kernel after the other, and nothing comes between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

from blockdiff.planning.shape import ModelShape
from blockdiff.planning.speed.devices import Rates
from blockdiff.planning.speed.routing import Routing, union
from blockdiff.planning.speed.step import Rows, StepKernel, step_kernels
from blockdiff.planning.speed.weights import WeightFormat
from blockdiff_kernels.cost import Cost

MOST_TOKENS_PER_FORWARD = 8


@dataclass(frozen=True)
class Question:
    """What is asked for, whatever the batch."""

    shape: ModelShape
    weights: WeightFormat
    rates: Rates
    block_length: int
    context: int
    routing: Routing = Routing()
    state_bytes: float = 4.0

    @property
    def tokens_per_forward(self) -> range:
        """Numbers that are looked at; a block has no more than it has places."""
        return range(1, min(MOST_TOKENS_PER_FORWARD, self.block_length) + 1)

    def distinct(self, segments: int, rows: int, routing: Routing) -> float:
        """Experts of a layer that segments of ``rows`` rows use; 0 where there are none."""
        own = self.shape.experts
        return 0.0 if own is None else routing.distinct(own.count, own.chosen, segments, rows)

    def kernels(
        self, segments: int, rows: int, distinct: float, with_logits: int
    ) -> list[StepKernel]:
        """Of a forward of ``segments`` segments of ``rows`` rows."""
        own = Rows(segments, rows, self.context, with_logits, distinct, self.state_bytes)
        return step_kernels(self.shape, own, self.weights)

    def seconds(self, kernels: Sequence[StepKernel]) -> float:
        """The sum of the kernels' floors."""
        rates = self.rates.bytes_per_second, self.rates.flops_per_second
        return sum(kernel.times * kernel.cost.seconds(*rates) for kernel in kernels)


@dataclass(frozen=True)
class Forecast:
    """For one batch size."""

    batch: int
    rows: int
    distinct_experts: float | None
    forward_seconds: float  # all blocks denoised once
    commit_seconds: float  # what the commits of all blocks add to a forward they ride in
    autoregressive_seconds: float  # the same weights, one token of each request
    kernels: tuple[StepKernel, ...]

    @property
    def cost(self) -> Cost:
        """Of the whole forward; its seconds are more than the floor of this sum."""
        return reduce(Cost.plus, (own.cost.times(own.times) for own in self.kernels))

    def tokens_per_second(self, tokens_per_forward: float) -> float:
        """Of all requests, while blocks are denoised; commits come on top."""
        return self.batch * tokens_per_forward / self.forward_seconds

    def with_commits(self, tokens_per_forward: float) -> float:
        """The same where each block's commit rides in one of its forwards."""
        block = self.rows / self.batch
        seconds = block / tokens_per_forward * self.forward_seconds + self.commit_seconds
        return self.batch * block / seconds

    @property
    def autoregressive_tokens_per_second(self) -> float:
        return self.batch / self.autoregressive_seconds

    @property
    def break_even(self) -> float:
        """Tokens per forward with which denoising is as fast as one token at a time."""
        return self.forward_seconds / self.autoregressive_seconds


def forecast(asked: Question, batch: int) -> Forecast:
    """The ceiling for ``batch`` requests at once."""
    block, rows = asked.block_length, batch * asked.block_length
    distinct = asked.distinct(batch, block, asked.routing)
    kernels = asked.kernels(batch, block, distinct, rows)
    alone = asked.seconds(kernels)
    one_by_one = asked.kernels(batch, 1, asked.distinct(batch, 1, Routing()), batch)
    return Forecast(
        batch=batch,
        rows=rows,
        distinct_experts=distinct if asked.shape.experts else None,
        forward_seconds=alone,
        commit_seconds=asked.seconds(_with_commits(asked, batch, distinct)) - alone,
        autoregressive_seconds=asked.seconds(one_by_one),
        kernels=tuple(kernels),
    )


def _with_commits(asked: Question, batch: int, distinct: float) -> list[StepKernel]:
    """A forward in which every block's commit rides: they choose among all experts, and none of
    their rows needs logits."""
    block, experts = asked.block_length, asked.shape.experts
    free = asked.distinct(batch, block, replace(asked.routing, coreset=None))
    together = union(experts.count, distinct, free) if experts else 0.0
    return asked.kernels(2 * batch, block, together, batch * block)
