"""The scheduler under arrivals, cancels, deadlines, priorities, shared prefixes and little memory.

Whatever happens, every output is that of the request alone and no page or state line is lost.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from blockdiff.core import BlockResult, FinishReason, Mode, Request
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import RequestError
from tests.engine import fakes

PROMPTS = tuple(tuple((i * i + shift) % 30 for i in range(50)) for shift in (0, 7))
MOST_ROUNDS = 2000


@dataclass
class Sent:
    request: Request
    results: list[BlockResult]

    @property
    def is_over(self) -> bool:
        return bool(self.results) and self.results[-1].is_final


class UnderLoad(RuleBasedStateMachine):
    """One engine with little of everything, and whoever comes and goes."""

    @initialize(
        anchor=st.sampled_from(["zero", "prompt_end"]),
        state_bytes=st.sampled_from([0, 8]),
        slots=st.integers(1, 5),
        budget=st.sampled_from([3, 8, 64]),
        page_length=st.sampled_from([4, 8, 16]),
        pages=st.sampled_from([8, 12, 60]),
        keeps_prefixes=st.sampled_from([True, True, False]),
        snapshots=st.sampled_from([0, 1, 3, 10]),
        interval=st.sampled_from([4, 16, 64]),
        truncates=st.booleans(),
    )
    def start(
        self,
        anchor: str,
        state_bytes: int,
        slots: int,
        budget: int,
        page_length: int,
        pages: int,
        keeps_prefixes: bool,
        snapshots: int,
        interval: int,
        truncates: bool,
    ) -> None:
        self.facts = fakes.info(block_anchor=anchor, block_lengths_allowed=None)
        model = fakes.HashModel(self.facts)
        model.state_bytes = state_bytes
        config = EngineConfig(
            max_slots=slots,
            max_context=100,
            prefill_token_budget=budget,
            page_length=page_length,
            kv_cache_bytes=(pages + 1) * page_length,
            prefix_cache=keeps_prefixes,
            snapshot_bytes=snapshots * state_bytes * keeps_prefixes,
            snapshot_interval=interval if state_bytes and keeps_prefixes else 512,
            check_invariants=True,
            truncate_last_block=truncates,
        )
        self.engine = Engine(model, config)
        self.sent: dict[int, Sent] = {}

    @rule(
        prompt=st.sampled_from(PROMPTS),
        length=st.integers(1, 50),
        own=st.lists(st.integers(0, 29), max_size=5),
        max_tokens=st.integers(1, 20),
        priority=st.integers(0, 2),
        block_length=st.sampled_from([None, 2, 3, 8]),
        kind=st.sampled_from(["plain", "pinned", "endless", "single", "late"]),
    )
    def arrive(
        self,
        prompt: tuple[int, ...],
        length: int,
        own: list[int],
        max_tokens: int,
        priority: int,
        block_length: int | None,
        kind: str,
    ) -> None:
        if not self.engine.free_slots:
            return self.run(1)
        fields: dict[str, Any] = {"max_tokens": max_tokens, "priority": priority}
        if kind == "single":
            fields["mode"] = Mode.AUTOREGRESSIVE
        else:
            fields["block_length"] = block_length
        if kind == "pinned":
            fields["pinned"] = tuple((place, 5 + place) for place in range(1, max_tokens, 3))
        if kind == "late":
            fields["deadline"] = 0.0
        uid = len(self.sent) + 1
        wanted = fakes.request(
            uid, [*prompt[:length], *own], ignore_eos=kind == "endless", **fields
        )
        try:
            self.engine.add_request(wanted)
        except RequestError as error:
            needed = len(wanted.input_ids) + max_tokens - 1
            rules = self.engine.memory
            assert needed > rules.pages * rules.page_length or needed >= 100, error
            return
        self.sent[uid] = Sent(wanted, [])

    @rule(which=st.integers(0, 8))
    def cancel(self, which: int) -> None:
        """One of the latest arrivals, who may have ended; or nobody."""
        self.engine.cancel(len(self.sent) - which)

    @rule(rounds=st.integers(1, 6))
    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            for result in self.engine.step():
                self.sent[result.request_uid].results.append(result)

    @invariant()
    def checked(self) -> None:
        if hasattr(self, "engine"):
            self.engine._scheduler.check()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(MOST_ROUNDS):
            if not self.engine.has_work:
                break
            self.run(1)
        assert all(one.is_over for one in self.sent.values()), "a request starves"
        for one in self.sent.values():
            self._compare(one)
        memory = self.engine._scheduler.memory
        assert not memory.held.any()
        assert memory.available == memory.pool.total, "pages have been lost"
        assert len(memory.lines.free) + len(memory.lines.kept) == memory.lines.count

    def _compare(self, one: Sent) -> None:
        truncates = self.engine.config.truncate_last_block
        alone, _ = fakes.decode_alone(fakes.HashModel(self.facts), one.request, truncates)
        found = fakes.ids(one.results)
        if one.results[-1].finish_reason in (FinishReason.CANCELLED, FinishReason.TIMEOUT):
            alone = alone[: len(found)]
        assert found == alone, one.request


TestUnderLoad = UnderLoad.TestCase
TestUnderLoad.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
