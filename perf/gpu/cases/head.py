"""The output head: the best token of every row and its probability."""

from collections.abc import Callable, Sequence

from blockdiff_kernels.head import Choice, Rules, choose
from blockdiff_kernels.head.cost import cost
from perf.gpu.case import Maker, OpCase, Results, Work
from perf.gpu.sizes import Sizes


def cases(sizes: Sizes, rows: Sequence[int]) -> list[OpCase]:
    """Greedy rows, of which none is settled."""
    return [
        OpCase(
            "head", "greedy", count, _greedy(count, sizes),
            cost(count, sizes.hidden, sizes.vocabulary), limit=1e-5,
        )
        for count in rows
    ]  # fmt: skip


def _greedy(rows: int, sizes: Sizes) -> Callable[[Maker], Work]:
    def make(maker: Maker) -> Work:
        hidden = maker.normal(rows, sizes.hidden)
        weight = maker.normal(sizes.vocabulary, sizes.hidden, scale=sizes.hidden**-0.5)
        rules = Rules(maker.ints([sizes.vocabulary - 1] * rows).unsqueeze(1))
        return Work(lambda: choose(hidden, weight, None, rules), _look)

    return make


def _look(chosen: Choice) -> Results:
    # tokens are left out: of equal logits either may be the best in its precision
    return [chosen.log_probs, chosen.best_log_probs]
