"""Times of cases and of whole steps, as long as there is time. Knows nothing of reports."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from blockdiff.config import parse_config
from blockdiff.models.trunk import LanguageModel
from blockdiff.planning.families import describe
from blockdiff.planning.speed.devices import DEVICES
from blockdiff.planning.speed.forecast import Question, forecast
from blockdiff.planning.speed.weights import weight_format
from blockdiff_kernels.cost import Cost
from blockdiff_kernels.implementation import using
from perf.gpu.case import Maker
from perf.gpu.cases import all_cases
from perf.gpu.random_weights import random_model
from perf.gpu.report import Measured
from perf.gpu.sizes import Sizes
from perf.gpu.step import captured, make_step
from perf.gpu.timing import Deadline, Timer

# what floors are made of: the rates that were measured
RATES = DEVICES["h200"]
EAGER, GRAPH = "eager", "graph"
# about what each takes at most
CASE_SECONDS, MODEL_SECONDS, STEP_SECONDS = 2.0, 45.0, 8.0
SHORT = {"bfloat16": "bf16"}


@dataclass(frozen=True)
class Bench:
    """What is measured, where and for how long."""

    sizes: Sizes
    device: torch.device
    timer: Timer
    deadline: Deadline
    errors: Mapping[str, float]  # by label, of the checks


def measure_ops(bench: Bench, ops: Sequence[str]) -> Iterator[Measured]:
    """Every checked case at every number of rows, also at those that were not checked."""
    checked = {label.rpartition("/")[0] for label in bench.errors}
    with using("triton"), torch.inference_mode():
        for case in all_cases(bench.sizes, bench.sizes.rows, ops):
            if case.label.rpartition("/")[0] not in checked:
                bench.deadline.left_out.append(f"{case.label}, which is not checked")
                continue
            if not bench.deadline.allows(case.label, CASE_SECONDS):
                continue
            work = case.make(Maker(bench.device, torch.bfloat16))
            yield Measured(
                op=case.op,
                name=case.name,
                weights=case.weights,
                rows=case.rows,
                mode=EAGER,
                seconds=bench.timer.seconds(work.run),
                floor_seconds=_floor(case.cost),
                cost=case.cost,
                error=bench.errors.get(case.label),
            )


def _floor(cost: Cost) -> float:
    return cost.seconds(RATES.bytes_per_second, RATES.flops_per_second)


def measure_steps(bench: Bench, weights: Sequence[str]) -> Iterator[Measured]:
    """Steps of the whole model in each kind of weights, of few blocks and of many."""
    with using("triton"), torch.inference_mode():
        for dtype in weights:
            name = f"step/{SHORT.get(dtype, dtype)}"
            if not bench.deadline.allows(name, MODEL_SECONDS):
                continue
            model = random_model(bench.sizes.config(), bench.device, dtype)
            for rows in bench.sizes.rows:
                if bench.deadline.allows(f"{name}/T={rows}", STEP_SECONDS):
                    yield from _step(bench, model, dtype, rows)
            del model
            if bench.device.type == "cuda":
                torch.cuda.empty_cache()


def _step(bench: Bench, model: LanguageModel, dtype: str, rows: int) -> Iterator[Measured]:
    """One number of rows, launched one by one and then replayed."""
    sizes, kept = bench.sizes, SHORT.get(dtype, dtype)
    blocks = rows // sizes.block
    asked = Question(
        describe(parse_config(sizes.config())),
        weight_format(kept),
        RATES,
        sizes.block,
        sizes.context,
    )
    expected = forecast(asked, blocks)
    work = make_step(model, sizes, blocks)
    for mode in (EAGER, GRAPH):
        try:
            run = work.run if mode == EAGER else captured(work, bench.device)
            seconds = bench.timer.seconds(run)
        # what a step allocates or waits for can keep it from being captured: the others go on
        except Exception as raised:
            text = " ".join(str(raised).split())[:200]
            failed = f"step/{kept}/T={rows} {mode}: {type(raised).__name__}: {text}"
            bench.deadline.left_out.append(failed)
            return
        yield Measured(
            op="step",
            name=f"{sizes.layers}-layers",
            weights=kept,
            rows=work.rows,
            mode=mode,
            seconds=seconds,
            floor_seconds=expected.forward_seconds,
            cost=expected.cost,
            error=None,
        )
