"""The golden results once more, every op forced to its Triton kernel, on the tiniest cases.

Kernels are interpreted: the smallest checkpoint of each family, one entry of each kind.
Run: pytest tests/golden
"""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from blockdiff.checkpoint import load_model
from blockdiff.cli.logit_requests import parse_request
from blockdiff.cli.logit_runner import LogitRunner
from blockdiff.cli.recorded import RecordedTensors
from blockdiff.models.trunk import LanguageModel
from blockdiff_kernels.implementation import using

from . import cases, test_generate

KERNELS = "triton"


def _rows(entry: dict[str, Any]) -> int:
    """Rows of a logits entry, or the least forwards times rows of a generation."""
    ids = sum(len(entry.get(name) or ()) for name in ("input_ids", "prefix_ids", "block_ids"))
    return ids * (1 + int(entry["params"].get("max_tokens", 0)))


def _tiniest() -> list[str]:
    """The case of each family whose entries have the fewest rows."""
    found: dict[str, str] = {}
    for case in sorted(cases.CASES, key=lambda case: sum(map(_rows, cases.entries(case)))):
        found.setdefault(case.split("/")[0], case)
    return sorted(found.values())


def _smallest(is_wanted: Callable[[dict[str, Any]], bool], case: str) -> list[dict[str, Any]]:
    found = sorted(filter(is_wanted, cases.entries(case)), key=_rows)
    return found[:1]


LOGITS = [
    pytest.param(case, entry, id=f"{case}-{kind}")
    for case in _tiniest()
    for kind in sorted({entry["kind"] for entry in cases.entries(case)} - {"generate"})
    for entry in _smallest(lambda entry, kind=kind: entry["kind"] == kind, case)
]
GENERATE = [
    pytest.param(case, entry, id=case)
    for case in _tiniest()
    if case in test_generate.CASES
    for entry in _smallest(lambda entry: entry["kind"] == "generate", case)
]


@functools.cache
def _model(case: str) -> LanguageModel:
    """Loaded for kernels: weights are laid out for whoever reads them."""
    with using(KERNELS):
        return load_model(cases.FIXTURES / case)


def test_every_family_takes_part() -> None:
    families = {case.split("/")[0] for case in cases.CASES}
    assert {str(param.values[0]).split("/")[0] for param in LOGITS} == families
    # canvases replay recorded draws; see test_replay
    generating = {str(param.values[0]).split("/")[0] for param in GENERATE}
    assert generating == {case.split("/")[0] for case in test_generate.CASES}


@pytest.mark.parametrize(("case", "entry"), LOGITS)
def test_logits(case: str, entry: dict[str, Any]) -> None:
    model = _model(case)
    recorded = RecordedTensors(cases.FIXTURES / case)
    request = parse_request(entry, model.info, model.formulation)
    with using(KERNELS):
        got = LogitRunner(model, request.total_tokens, recorded).run(request)
    want = cases.expected_roles(case, entry)
    assert set(want) <= set(got)
    for role, tensor in want.items():
        cases.assert_within(entry, role, got[role], tensor)


@pytest.mark.parametrize(("case", "entry"), GENERATE)
def test_generate_one(case: str, entry: dict[str, Any]) -> None:
    with using(KERNELS):
        outcome = test_generate.run(case, [entry], 1, _model(case))[0]
    test_generate.check(entry, outcome)
