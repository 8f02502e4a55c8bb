"""All checks, several at once: compiling takes longer than running. Knows cases, not their ops."""

from concurrent.futures import ProcessPoolExecutor, TimeoutError
from dataclasses import dataclass
from multiprocessing import get_context

import torch

from perf.gpu.case import OpCase
from perf.gpu.cases import all_cases
from perf.gpu.correctness import Verdict, check
from perf.gpu.replay import REPLAY_LABEL, check_replays
from perf.gpu.sizes import FULL, TINY, Sizes
from perf.gpu.step import STEP_LABEL, check_step
from perf.gpu.timing import Deadline

STEP_CHECKS = ((STEP_LABEL, check_step), (REPLAY_LABEL, check_replays))


def rows_of(sizes: Sizes) -> tuple[int, ...]:
    """The smallest and the largest rounds and one between take every kernel's every tile."""
    rows = sizes.rows
    return tuple(dict.fromkeys((rows[0], rows[len(rows) // 2], rows[-1])))


@dataclass(frozen=True)
class CheckPlan:
    """What is checked, in words that another process understands."""

    device: str
    tiny: bool
    ops: tuple[str, ...]
    has_steps: bool

    @property
    def sizes(self) -> Sizes:
        return TINY if self.tiny else FULL

    @property
    def cases(self) -> list[OpCase]:
        return all_cases(self.sizes, rows_of(self.sizes), self.ops)

    @property
    def labels(self) -> list[str]:
        """Of the cases, and then of whole steps."""
        steps = [label for label, _ in STEP_CHECKS] if self.has_steps else []
        return [case.label for case in self.cases] + steps


def run_checks(plan: CheckPlan, workers: int, deadline: Deadline) -> list[Verdict]:
    """A verdict for each case and for whole steps, each printed as it comes.

    On a GPU by processes of their own, whose compiled kernels this one finds in Triton's cache.
    What there is no time for is noted and has no verdict.
    """
    numbers = range(len(plan.labels))
    if plan.device == "cpu":
        allowed = (n for n in numbers if deadline.allows(f"check {plan.labels[n]}"))
        return [_said(_check_numbered(plan, number)) for number in allowed]
    found = []
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    # the step's checks take longest
    waiting = {n: pool.submit(_check_numbered, plan, n) for n in reversed(numbers)}
    for number in numbers:
        try:
            found.append(_said(waiting[number].result(max(deadline.left, 0.0))))
        except TimeoutError:
            deadline.left_out.append(f"check {plan.labels[number]}")
    pool.shutdown(wait=False, cancel_futures=True)
    return found


def _check_numbered(plan: CheckPlan, number: int) -> Verdict:
    cases = plan.cases
    device = torch.device(plan.device)
    if number < len(cases):
        return check(cases[number], device)
    _, check_one = STEP_CHECKS[number - len(cases)]
    return check_one(plan.sizes, device)


def _said(verdict: Verdict) -> Verdict:
    word = "right" if verdict.is_right else "WRONG"
    numbers = f"error {verdict.error:.2e}, limit {verdict.limit:.2e}"
    print(f"{word} {verdict.label:50} {numbers}  {verdict.said}".rstrip(), flush=True)
    return verdict
