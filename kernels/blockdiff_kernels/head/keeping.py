"""Top-k and top-p after a choice without them: launches of the passes that rows need.

Knows nothing of how a token was chosen first.
"""

from typing import Any

from torch import Tensor

from blockdiff_kernels.head import gathering, pivoting
from blockdiff_kernels.head.rules import MOST_LISTED, RowDraws
from blockdiff_kernels.head.tiles import ScoreTile
from blockdiff_kernels.launch import ceil_div, launch, power_of_two

# Programs of passes that no row needs end at once. A row still undecided takes its best token.
PASSES = 32
HIDDEN_STEP = 64
NUMBERS_PER_WARP = 512


def keep_best(
    arguments: dict[str, Any], draws: RowDraws, tokens: Tensor, log_probs: Tensor, tile: ScoreTile
) -> None:
    """Replace drawn tokens that top-k or top-p does not keep, in place.

    ``arguments`` of the score kernel; tokens, log_probs: lines of the merge kernel.
    """
    filters = draws.filters
    assert filters is not None, "nothing to do"
    shared: dict[str, Any] = {
        "temperature": draws.temperature,
        "top_k": filters.top_k,
        "top_p": filters.top_p,
        "log_total": log_probs[8],
        "token": tokens[0],
        "log_probs": log_probs[0],
    }
    names = ("hidden", "weight", "live", "banned", "keys", "numbers", "ids", "L", "V", "P", "W")
    shared |= {name: arguments[name] for name in (*names, "cap", "H", "BT", "BV", "BK")}
    shared["BP"] = power_of_two(shared["P"])
    if filters.most_listed:
        _gather(shared, power_of_two(filters.most_listed))
    if filters.has_others:
        own = {"peak": log_probs[5], "score": log_probs[7], "greedy": tokens[1]}
        _reject({**shared, **own}, tile)


def _gather(shared: dict[str, Any], parts: int) -> None:
    """Rows with a small top-k; ``parts`` of the vocabulary hold the best tokens of each."""
    token, rows = shared["token"], shared["L"]
    picked = token.new_empty((rows, parts), dtype=shared["ids"].dtype)
    scores = shared["log_probs"].new_empty((rows, parts, shared["BV"]))
    own = {**shared, "K": parts, "picked": picked, "scores": scores, "BN": parts * shared["BV"]}
    launch_named(gathering.pick_kernel, (rows,), own)
    launch_named(gathering.gather_kernel, (rows, parts), {**own, "BK": HIDDEN_STEP})
    warps = max(own["BN"] // NUMBERS_PER_WARP, 1)
    launch_named(gathering.select_kernel, (rows,), own, warps)


def _reject(shared: dict[str, Any], tile: ScoreTile) -> None:
    """Rows with a top-p alone, or a large top-k alone."""
    top_k, top_p, rows = shared["top_k"], shared["top_p"], shared["L"]
    is_other = (top_k > MOST_LISTED) | ((top_k <= 0) & (top_p < 1))
    is_other &= shared["temperature"] > 0
    shape = (pivoting.LINES, rows, shared["P"])
    own = {
        **shared,
        "done": (~is_other).int(),
        "numbers": shared["log_probs"].new_empty(shape),
    }
    grid = (ceil_div(rows, tile.rows), shared["P"])
    for number in range(PASSES):
        own["is_last"] = int(number == PASSES - 1)
        launch_named(pivoting.pivot_kernel, grid, own, tile.num_warps, tile.num_stages)
        launch_named(pivoting.judge_kernel, (rows,), own)


def launch_named(
    kernel: Any, grid: tuple[int, ...], known: dict[str, Any], num_warps: int = 4, stages: int = 1
) -> None:
    """Start ``kernel`` with those of ``known`` that it takes."""
    arguments = {name: known[name] for name in kernel.arg_names}
    launch(kernel, grid, arguments, num_warps, stages)
