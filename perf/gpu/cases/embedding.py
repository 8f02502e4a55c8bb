"""Rows of the embedding, and the row that logits expect."""

from collections.abc import Callable, Sequence

from blockdiff_kernels.embedding import embedding
from blockdiff_kernels.embedding.cost import cost as cost_of_rows
from blockdiff_kernels.self_conditioning import expected_embedding
from blockdiff_kernels.self_conditioning.cost import cost as cost_of_expected
from perf.gpu.case import Maker, OpCase, Work
from perf.gpu.sizes import Sizes

SCALE = 0.5


def cases(sizes: Sizes, rows: Sequence[int]) -> list[OpCase]:
    """The look-up of a round's tokens."""
    return [
        OpCase(
            "embedding",
            "tokens",
            count,
            _looked_up(count, sizes),
            cost_of_rows(count, sizes.hidden),
        )
        for count in rows
    ]


def conditioning_cases(sizes: Sizes, rows: Sequence[int]) -> list[OpCase]:
    """What canvases expect of their last step."""
    of = (sizes.hidden, sizes.vocabulary)
    return [
        OpCase(
            "self_conditioning",
            "logits",
            count,
            _expected(count, sizes),
            cost_of_expected(count, *of),
        )
        for count in rows
    ]


def _looked_up(rows: int, sizes: Sizes) -> Callable[[Maker], Work]:
    def make(maker: Maker) -> Work:
        table = maker.normal(sizes.vocabulary, sizes.hidden)
        ids = maker.numbers(rows, below=sizes.vocabulary)
        return Work(lambda: [embedding(ids, table)])

    return make


def _expected(rows: int, sizes: Sizes) -> Callable[[Maker], Work]:
    def make(maker: Maker) -> Work:
        table = maker.normal(sizes.vocabulary, sizes.hidden)
        logits = maker.normal(rows, sizes.vocabulary, scale=4.0, dtype=maker.state_dtype)
        return Work(lambda: [expected_embedding(logits, table, SCALE)])

    return make
