"""The output head as Triton kernels: rows choose tokens and no logits reach memory.

Knows nothing of blocks, requests or what is made of the tokens.
"""

from typing import Any

import torch
from torch import Tensor

from blockdiff_kernels.head import merging, scoring, tiles
from blockdiff_kernels.head.keeping import keep_best
from blockdiff_kernels.head.rules import Choice, Controls, Entropy, Others, Peaks, Rules
from blockdiff_kernels.launch import capability, ceil_div, launch, power_of_two

_NO_CONTROLS = Controls(-1, -1, -1)


def choose(hidden: Tensor, weight: Tensor, cap: float | None, rules: Rules) -> Choice:
    """See the package docstring; rows that do not count get no values."""
    rows, (vocabulary, width) = hidden.shape[0], weight.shape
    draws = rules.draws
    assert rules.entropy is not Entropy.SCALED or draws is not None, "there is no temperature"
    tile = tiles.score_tile(rows, weight.element_size(), draws is not None, capability(hidden))
    parts = ceil_div(vocabulary, tile.vocabulary)
    numbers = hidden.new_empty((_lines(rules), rows, parts), dtype=torch.float32)
    ids = hidden.new_empty((3, rows, parts), dtype=torch.int32)
    shared: dict[str, Any] = {
        "live": rules.live,
        "temperature": None if draws is None else draws.temperature,
        "numbers": numbers,
        "ids": ids,
        "L": rows,
        "P": parts,
        "mask_id": (rules.controls or _NO_CONTROLS).mask,
        "DRAWS": draws is not None,
        "ENTROPY": int(rules.entropy),
        "CONTROLS": rules.controls is not None,
    }
    scoring_arguments = {
        **shared,
        "hidden": hidden.contiguous(),
        "weight": weight,
        "banned": rules.banned.contiguous(),
        "keys": None if draws is None else draws.keys,
        "V": vocabulary,
        "W": rules.banned.shape[1],
        "cap": float(cap or 0.0),
        "delete_id": (rules.controls or _NO_CONTROLS).delete,
        "split_id": (rules.controls or _NO_CONTROLS).split,
        "H": width,
        "BT": tile.rows,
        "BV": tile.vocabulary,
        "BK": tile.hidden,
    }
    grid = (ceil_div(rows, tile.rows), parts)
    launch(scoring.score_kernel, grid, scoring_arguments, tile.num_warps, tile.num_stages)
    tokens = hidden.new_empty((4, rows), dtype=torch.int64)
    log_probs = hidden.new_empty((9, rows), dtype=torch.float32)
    arguments = {**shared, "tokens": tokens, "log_probs": log_probs, "BP": power_of_two(parts)}
    launch(merging.merge_kernel, (rows,), arguments)
    if draws is not None and draws.filters is not None:
        assert rules.controls is None, "other tokens are those of rows without filters"
        keep_best(scoring_arguments, draws, tokens, log_probs, tile)
    return _choice(tokens, log_probs, rules)


def _lines(rules: Rules) -> int:
    """Lines of numbers that the kernels hand on; see ``scoring``."""
    if rules.controls is not None:
        return 9
    if rules.entropy is not Entropy.NONE:
        return 7
    return 3 if rules.draws is None else 5


def _choice(tokens: Tensor, log_probs: Tensor, rules: Rules) -> Choice:
    others = None
    if rules.controls is not None:
        others = Others(tokens[2], log_probs[2], tokens[3], log_probs[3])
    entropy = None if rules.entropy is Entropy.NONE else log_probs[4]
    peaks = Peaks(log_probs[5], log_probs[6]) if rules.entropy is Entropy.SCALED else None
    return Choice(tokens[0], log_probs[0], tokens[1], log_probs[1], entropy, others, peaks)
