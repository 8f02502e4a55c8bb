"""The life of requests in slots: admit, plan a round, apply what was decided, finish.

Knows nothing of torch, models or threads; stop strings are found by a ``StopFinder`` it is given.
"""

from dataclasses import dataclass, replace

import numpy as np

from blockdiff.constraints.base import Constraint
from blockdiff.core import BlockResult, FinishReason, ForwardCounts, Request
from blockdiff.errors import CapacityError
from blockdiff.scheduler.arrays import Flags, Ints
from blockdiff.scheduler.canvases import watched_canvases, with_canvases
from blockdiff.scheduler.certify import Certifier
from blockdiff.scheduler.checks import check_memory
from blockdiff.scheduler.choice import choose, split
from blockdiff.scheduler.counters import Counters
from blockdiff.scheduler.counts import count_round
from blockdiff.scheduler.decisions import Decisions, StopFinder
from blockdiff.scheduler.memory import Memory, MemoryRules
from blockdiff.scheduler.plan import RoundPlan, build_plan
from blockdiff.scheduler.results import block_results
from blockdiff.scheduler.reuse import Reuse
from blockdiff.scheduler.table import BlockOpening, SlotState, SlotTable
from blockdiff.scheduler.thinking import ThinkBudgets, ThinkWatch

GUIDE_COMPLETE, GUIDE_INCOMPLETE = "guide_complete", "guide_incomplete"


@dataclass
class _Running:
    request: Request
    stops: StopFinder | None
    searched: int = 0
    """Positions of the open block that ``stops`` has seen."""


class Scheduler:
    """Slots and the requests in them."""

    def __init__(
        self,
        num_slots: int,
        mask_token_id: int,
        prefill_token_budget: int,
        rules: MemoryRules,
        opening: BlockOpening,
    ) -> None:
        self.table = SlotTable(num_slots, mask_token_id, opening)
        self.counters = Counters()
        self.memory = Memory(self.table, rules, self.counters)
        self.reuse = Reuse(self.table, self.memory, self.counters)
        self.certifier = Certifier(self.table)
        self.thinking = ThinkBudgets(self.table)
        self._budget = prefill_token_budget
        self._running: dict[int, _Running] = {}
        self._slot_of: dict[int, int] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def is_running(self, uid: int) -> bool:
        return uid in self._slot_of

    def admit(
        self,
        request: Request,
        block_length: int,
        threshold: float,
        anchored_at_zero: bool,
        stops: StopFinder | None,
        constraint: Constraint | None = None,
        thinking: ThinkWatch | None = None,
    ) -> int:
        """Put a checked request into a free slot and return the slot."""
        if not self.table.free_slots:
            raise CapacityError("all slots are in use; retry when a request has finished")
        slot = self.table.open(request, block_length, threshold, anchored_at_zero)
        self.table.has_stops[slot] = stops is not None
        self._running[slot] = _Running(request, stops, int(self.table.first_response[slot]))
        self._slot_of[request.uid] = slot
        self.reuse.open(slot)
        self.thinking.open(slot, thinking)
        self.certifier.open(slot, constraint)
        self.counters.requests += 1
        return slot

    def plan(self) -> RoundPlan | None:
        """What can run now; None: nothing."""
        chosen = choose(self.table, self.memory, self.reuse, self._budget)
        segments = split(self.table, self.reuse, chosen)
        if not len(segments.slots):
            return None
        return build_plan(self.table, self.memory, chosen, segments)

    def check(self) -> None:
        """Prove that every page, state line and prefix is owned as it should be."""
        check_memory(self.table, self.memory)

    def expired(self, now: float) -> list[int]:
        """Uids of requests whose deadline has passed."""
        table = self.table
        late: list[int] = table.uid[table.deadline <= now].tolist()
        return late

    def stop(self, uid: int, reason: FinishReason) -> BlockResult | None:
        """End a request now, whatever it is doing; its settled tokens are in the result."""
        slot = self._slot_of.get(uid)
        if slot is None:
            return None
        slots = np.array([slot])
        needed = self.table.block_length[slots] - self._overhang(slots)
        settled = np.minimum(self.table.endings(slots).settled, needed)
        return self._finish(slot, int(settled[0]), reason, "")

    def fail(self, slot: int, error: str) -> BlockResult:
        """End the request in ``slot`` with an error text."""
        self.counters.failed += 1
        return self._finish(slot, int(self.table.first_response[slot]), None, "", error)

    def fail_round(self, plan: RoundPlan, error: str) -> list[BlockResult]:
        """End the requests that ran in ``plan``, which may have been left half done."""
        results = [self.fail(slot, error) for slot in plan.running_slots.tolist()]
        # Others may have had their pages and states prepared in it.
        waiting = np.flatnonzero(self.table.state == SlotState.PREFILL).tolist()
        for slot in waiting:
            self.memory.restart(slot)
        self.reuse.suspend(waiting)
        return results

    def fail_all(self, error: str) -> list[BlockResult]:
        return [self.fail(slot, error) for slot in list(self._running)]

    def apply(self, plan: RoundPlan, decisions: Decisions) -> list[BlockResult]:
        """Take in the results of ``plan``; return the blocks that are finished by them."""
        count_round(self.table, self.counters, plan)
        self._advance_prefill(plan)
        table, slots = self.table, plan.group_slots
        table.written[plan.commit_slots] = table.final[plan.commit_slots]
        self._write_canvases(slots, decisions)
        is_sound = np.isfinite(decisions.log_probs).all(axis=1)
        has_written = np.zeros(table.num_slots, np.bool_)
        has_written[plan.prefill_slots] = has_written[plan.commit_slots] = True
        self.reuse.keep(slots[is_sound & has_written[slots]])
        watched = watched_canvases(table, slots, decisions, table.may_change(slots))
        results = self._finish_blocks(slots, ~is_sound)
        return with_canvases(watched, results) if watched else results

    def _advance_prefill(self, plan: RoundPlan) -> None:
        table, slots = self.table, plan.prefill_slots
        table.written[slots] += plan.prefill_chunks
        done = slots[table.written[slots] == table.final[slots]]
        table.state[done] = SlotState.DECODE

    def _write_canvases(self, slots: Ints, decisions: Decisions) -> None:
        table, width = self.table, decisions.canvas.shape[1]
        traced = np.flatnonzero(table.is_traced[slots])
        if len(traced):
            table.traces.record(table, slots, traced, decisions)
        log_probs = decisions.log_probs
        if table.has_random_canvases:
            # what has been certified is given to later steps, with what it was accepted with
            log_probs = np.where(
                table.pinned[slots, :width], table.log_probs[slots, :width], log_probs
            )
        table.canvas[slots, :width] = decisions.canvas
        table.log_probs[slots, :width] = log_probs
        table.masked[slots, :width] = decisions.is_open
        table.is_unsettled[slots] = ~decisions.is_settled
        table.post_steps[slots] += ~decisions.is_open.any(axis=1)

        # The single token of an autoregressive request is committed in the next round.
        singles = slots[table.is_autoregressive[slots]]
        if len(singles):
            tokens = table.canvas[singles, table.step[singles]]
            table.sequences[singles, table.final[singles]] = tokens
            table.final[singles] += 1
        table.step[slots] += 1
        self.certifier.refuse(slots)
        self.thinking.advance(slots)
        self.certifier.advance(slots)

    def _overhang(self, slots: Ints) -> Ints:
        """Positions of the open block that lie beyond the token limit."""
        table = self.table
        block_end = table.block_start[slots] + table.block_length[slots]
        overhang: Ints = np.maximum(block_end - table.end_position[slots], 0)
        return overhang

    def _finish_blocks(self, slots: Ints, is_broken: Flags) -> list[BlockResult]:
        table, ending = self.table, self.table.endings(slots)
        needed = table.block_length[slots] - self._overhang(slots)
        eos = np.where(ending.eos < needed, ending.eos, -1)
        is_whole = ending.settled >= needed
        block_end = table.block_start[slots] + table.block_length[slots]
        is_special = is_broken | table.has_stops[slots] | (eos >= 0)
        is_special |= table.is_constrained[slots]
        is_special |= is_whole & (block_end >= table.end_position[slots])
        # Most blocks are just followed by the next one.
        plain = np.flatnonzero(is_whole & ~is_special)
        results = block_results(table, slots[plain], needed[plain])
        self.counters.output_tokens += sum(len(result.token_ids) for result in results)
        self._next_blocks(slots[plain])
        # Tokens before this place are output, whatever comes later.
        ready = np.where(eos >= 0, eos, np.minimum(ending.settled, needed))
        for group in np.flatnonzero(is_special):
            slot = int(slots[group])
            if is_broken[group]:
                results.append(self.fail(slot, "the model's output is not finite"))
            else:
                place = (int(ready[group]), int(eos[group]), int(needed[group]))
                results += self._finish_block(slot, *place)
        return results

    def _finish_block(self, slot: int, ready: int, eos: int, needed: int) -> list[BlockResult]:
        """Results of a block whose first ``ready`` positions are final and hold no EOS."""
        running, certifier = self._running[slot], self.certifier
        if problem := certifier.error(slot) or self.thinking.error(slot):
            return [self.fail(slot, problem)]
        if certifier.has_ended(slot):
            ready = int(self.table.certified[slot] - self.table.block_start[slot])
            eos = eos if eos < ready else -1
        if running.stops is not None and ready > running.searched:
            tokens = self.table.canvas[slot, running.searched : ready].tolist()
            try:
                found = running.stops.push(tokens)
            except Exception as error:  # foreign code: must not take other requests down
                return [self.fail(slot, f"stop strings: cannot detokenise ({error})")]
            if found is not None:
                end = running.searched + found[1]
                return [self._finish(slot, end, FinishReason.STOP, found[0])]
            running.searched = ready
        if eos >= 0:
            token = str(self.table.canvas[slot, eos])
            return [self._finish(slot, eos + 1, FinishReason.STOP, token)]
        if certifier.has_ended(slot):
            return [self._finish(slot, ready, FinishReason.STOP, GUIDE_COMPLETE)]
        if ready < needed:
            return []
        block_end = self.table.block_start[slot] + self.table.block_length[slot]
        if block_end >= self.table.end_position[slot]:
            why = "" if certifier.is_complete(slot) else GUIDE_INCOMPLETE
            return [self._finish(slot, needed, FinishReason.LENGTH, why)]
        result = self._result(slot, needed)
        self._next_blocks(np.array([slot]))
        running.searched = 0
        return [result]

    def _next_blocks(self, slots: Ints) -> None:
        table = self.table
        table.settle_blocks(slots[~table.is_autoregressive[slots]])
        table.open_blocks(slots, table.block_start[slots] + table.block_length[slots])
        self.certifier.advance(slots)

    def _result(self, slot: int, end: int) -> BlockResult:
        (result,) = block_results(self.table, np.array([slot]), np.array([end]))
        self.counters.output_tokens += len(result.token_ids)
        return result

    def _finish(
        self,
        slot: int,
        end: int,
        reason: FinishReason | None,
        stop_reason: str,
        error: str | None = None,
    ) -> BlockResult:
        """The final result of the request in ``slot``; the slot is free afterwards."""
        open_block = self._result(slot, end)
        counts = ForwardCounts(*(int(count) for count in self.table.forwards[slot]))
        request = self._running.pop(slot).request
        del self._slot_of[request.uid]
        self.reuse.close(slot)
        self.certifier.close(slot)
        self.thinking.close(slot)
        self.table.close(slot)
        self.counters.finished += 1
        return replace(
            open_block,
            is_final=True,
            finish_reason=reason,
            stop_reason=stop_reason,
            forwards=counts,
            error=error,
        )
