"""Every round of every engine in these tests proves who owns its memory. Holds no tests."""

import pytest

from blockdiff.core import BlockResult
from blockdiff.scheduler import Decisions, RoundPlan, Scheduler


@pytest.fixture(autouse=True)
def _proved(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Scheduler.apply

    def apply_and_check(
        self: Scheduler, plan: RoundPlan, decisions: Decisions
    ) -> list[BlockResult]:
        results = apply(self, plan, decisions)
        self.check()
        return results

    monkeypatch.setattr(Scheduler, "apply", apply_and_check)
