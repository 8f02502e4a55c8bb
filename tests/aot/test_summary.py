"""perf/RESULTS.md says what the tables of resources say. Run: pytest tests/aot"""

from tests.aot.summary import stored, summary


def test_results_have_the_tables_in_short() -> None:
    assert stored() == summary(), "run: python -m tests.aot.summary --write"
