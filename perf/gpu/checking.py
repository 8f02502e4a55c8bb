"""All checks, several at once: compiling takes longer than running. Knows cases, not their ops."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import torch

from perf.gpu.cases import all_cases
from perf.gpu.correctness import Verdict, check
from perf.gpu.sizes import FULL, TINY, Sizes
from perf.gpu.step import check_step
from perf.gpu.timing import Deadline

# about what the slowest check takes, compiling included
CHECK_SECONDS = 20.0


def rows_of(sizes: Sizes) -> tuple[int, ...]:
    """The smallest and the largest rounds and one between take every kernel's every tile."""
    rows = sizes.rows
    return tuple(dict.fromkeys((rows[0], rows[len(rows) // 2], rows[-1])))


def run_checks(
    device: torch.device,
    tiny: bool,
    ops: Sequence[str],
    has_steps: bool,
    workers: int,
    deadline: Deadline,
) -> list[Verdict]:
    """A verdict for each case of ``ops`` and for the step, each printed as it comes.

    On a GPU by processes of their own, whose compiled kernels this one finds in Triton's cache.
    """
    sizes = TINY if tiny else FULL
    count = len(all_cases(sizes, rows_of(sizes), ops))
    work = partial(_check_numbered, str(device), tiny, tuple(ops))
    numbers = [*range(count), *([-1] if has_steps else [])]
    found = []
    if device.type == "cpu":
        for number in numbers:
            if deadline.allows(f"check {number}"):
                found.append(_said(work(number)))
        return found
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for verdict in pool.map(work, numbers):
            found.append(_said(verdict))
    return found


def _check_numbered(device: str, tiny: bool, ops: Sequence[str], number: int) -> Verdict:
    sizes = TINY if tiny else FULL
    place = torch.device(device)
    if number < 0:
        return check_step(sizes, place)
    return check(all_cases(sizes, rows_of(sizes), ops)[number], place)


def _said(verdict: Verdict) -> Verdict:
    word = "right" if verdict.is_right else "WRONG"
    said = f"  {verdict.said}" if verdict.said else ""
    print(f"{word} {verdict.label:50} error {verdict.error:.2e}, limit {verdict.limit:.2e}{said}",
          flush=True)  # fmt: skip
    return verdict
