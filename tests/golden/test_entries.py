"""Golden entries of single forwards, as ``blockdiff logits`` runs them. Run: pytest tests/golden"""

from typing import Any

import pytest

from blockdiff.cli.logit_requests import parse_request
from blockdiff.cli.logit_runner import LogitRunner
from blockdiff.cli.recorded import RecordedTensors

from . import cases

EVERY = [
    pytest.param(case, entry, id=f"{case}-{entry['kind']}-{entry['name']}")
    for case in cases.CASES
    for entry in cases.entries(case)
    if entry["kind"] != "generate"
]


def test_fixtures_are_there() -> None:
    assert len(cases.CASES) == 13
    assert len(EVERY) == 170


@pytest.mark.parametrize(("case", "entry"), EVERY)
def test_entry(case: str, entry: dict[str, Any]) -> None:
    model = cases.model(case)
    recorded = RecordedTensors(cases.FIXTURES / case)
    request = parse_request(entry, model.info, model.formulation)
    got = LogitRunner(model, request.total_tokens, recorded).run(request)
    want = cases.expected_roles(case, entry)
    assert set(want) <= set(got)
    for role, tensor in want.items():
        cases.assert_within(entry, role, got[role], tensor)
