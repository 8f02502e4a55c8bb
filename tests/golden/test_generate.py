"""Golden ``generate`` entries through the engine, several at a time. Run: pytest tests/golden"""

from typing import Any

import pytest

from blockdiff.cli.line_fields import check_fields, parse_line
from blockdiff.cli.request_lines import build_request
from blockdiff.engine import Engine, EngineConfig
from blockdiff.jobs import Job, Outcome, run_jobs
from blockdiff.models.trunk import LanguageModel

from . import cases

CASES = [
    case
    for case in cases.CASES
    if case not in cases.CANVAS_CASES  # these replay recorded draws; see test_replay
    and any(entry["kind"] == "generate" for entry in cases.entries(case))
]


def generate_entries(case: str) -> list[dict[str, Any]]:
    return [entry for entry in cases.entries(case) if entry["kind"] == "generate"]


def test_entries_are_there() -> None:
    counts = {case: len(generate_entries(case)) for case in CASES}
    assert len(CASES) == 7 and sum(counts.values()) == 207


def run(
    case: str, entries: list[dict[str, Any]], slots: int, model: LanguageModel | None = None
) -> list[Outcome]:
    model = cases.model(case) if model is None else model
    jobs = []
    for uid, entry in enumerate(entries):
        fields = check_fields(parse_line(cases.as_line(entry)))
        jobs.append(Job(build_request(fields, uid, model.info, None), fields.name))
    engine = Engine(model, EngineConfig(max_slots=slots, max_context=256))
    return run_jobs(engine, jobs)


def check(entry: dict[str, Any], outcome: Outcome) -> None:
    """Tokens and reason as the reference's, with no more forwards."""
    want, counts = entry["expected"], outcome.forwards
    assert outcome.output_ids == want["token_ids"]
    assert str(outcome.final.finish_reason) == want["finish_reason"]
    reference = entry["reference_forwards"]
    # all commits ride along; prompts prefill in one round, with the first preview
    assert counts.commit == 0 and counts.prefill <= 1
    assert counts.preview <= sum(reference.get("per_block", reference.get("denoise_per_block")))
    steps = [block.denoise_steps for block in outcome.blocks]
    per_block = reference.get("per_block", reference.get("denoise_per_block"))
    # whole blocks take exactly the reference's previews, only the last may end early
    assert steps[:-1] == per_block[: len(steps) - 1]
    assert steps[-1] <= per_block[len(steps) - 1]


@pytest.mark.parametrize("case", CASES)
def test_generate(case: str) -> None:
    """Eight at a time: entries of different parameters share rounds."""
    entries = generate_entries(case)
    outcomes = run(case, entries, slots=8)
    failed = {}
    for entry, outcome in zip(entries, outcomes, strict=True):
        try:
            check(entry, outcome)
        except AssertionError as error:
            failed[entry["name"]] = str(error)
    assert not failed


def test_more_steps_than_positions_change_nothing() -> None:
    case = "llada2_moe/block8"
    entry = next(e for e in generate_entries(case) if e["name"].startswith("multiple_3blocks"))
    schedule = [1] * 8 + [0] * 16
    more = {"steps": 32, "effective_steps": 24, "transfer_schedule": schedule, "max_tokens": 24}
    changed = {**entry, "params": {**entry["params"], **more}}
    check(entry, run(case, [changed], slots=1)[0])


def test_entropy_bounded_is_between_one_at_a_time_and_all_at_once() -> None:
    case = "sdar/block4"
    entry = next(e for e in generate_entries(case) if e["params"]["strategy"] == "sequential")
    params = {k: v for k, v in entry["params"].items() if k not in ("steps", "transfer_schedule")}
    steps = []
    for bound in (0.0, 4.0, 1e6):
        own = {**params, "strategy": "entropy_bounded", "eb_threshold": bound, "stop_ids": []}
        outcome = run(case, [{**entry, "params": own}], slots=1)[0]
        assert len(outcome.output_ids) == params["max_tokens"]
        steps.append(sum(block.denoise_steps for block in outcome.blocks))
    assert steps[0] > steps[1] > steps[2] == len(outcome.blocks)


@pytest.mark.parametrize("case", CASES)
def test_generate_alone(case: str) -> None:
    """One slot gives the same tokens (a few entries; the others are covered above)."""
    for entry in generate_entries(case)[::9]:
        check(entry, run(case, [entry], slots=1)[0])
