"""The engine: requests in, one forward per round, finished blocks out.

Single-threaded and deterministic: time is read only to compare deadlines.
Knows nothing of threads, Triton Inference Server or chat.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

from blockdiff.constraints.maker import ConstraintMaker
from blockdiff.core import BlockResult, FinishReason, Request
from blockdiff.decoding.draws import DrawSource, NoiseDraws
from blockdiff.engine.config import EngineConfig
from blockdiff.engine.forward import run_round
from blockdiff.engine.graphs import plan_graphs
from blockdiff.engine.insert_delete import InsertDelete
from blockdiff.engine.memory import allocate, check_fits, longest_request, plan_memory
from blockdiff.engine.recorder import Recorder
from blockdiff.engine.rounds import Rounds, StepCounts
from blockdiff.engine.statistics import ExpertCounts, ExpertStatistics
from blockdiff.engine.uniform import UniformRounds
from blockdiff.engine.validate import check_request, resolve_decoding
from blockdiff.engine.validate_constraint import check_constraint
from blockdiff.engine.warm_up import warm_up_requests
from blockdiff.errors import ConfigError, EngineDeadError, RequestError
from blockdiff.models.base import BlockDiffusionModel, ConditionedModel
from blockdiff.scheduler import BlockOpening, Decisions, RoundPlan, Scheduler, ThinkWatch
from blockdiff.scheduler.counters import Counters, PageCounts
from blockdiff.text import TextCodec, TextStream, ThinkTokens

logger = logging.getLogger(__name__)

# Rounds that may fail one after the other before the engine counts as broken.
MAX_FAILED_ROUNDS = 3


class _StopSearch:
    """Stop strings of one response, found by the incremental detokeniser."""

    def __init__(self, tokenizer: TextCodec, request: Request) -> None:
        self._stream = TextStream(tokenizer, request.stop_strings, min_tokens=request.min_tokens)

    def push(self, token_ids: Sequence[int]) -> tuple[str, int] | None:
        delta = self._stream.push(token_ids)
        return None if delta.stop is None else (delta.stop, delta.tokens_used)


class Engine:
    """Runs requests on one model. Owns the caches and the scheduler."""

    def __init__(
        self,
        model: BlockDiffusionModel,
        config: EngineConfig | None = None,
        tokenizer: TextCodec | None = None,
        draws: DrawSource | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """``draws``: where models with random canvases get their tokens; None: seeded noise.

        ``recorder``: what captures rounds; None: what the settings say.
        """
        self.model = model
        self.config = config or EngineConfig()
        if self.config.deterministic and not model.info.is_deterministic:
            raise ConfigError("deterministic: True needs a model that was loaded as deterministic")
        self._tokenizer = tokenizer
        self._constraints = ConstraintMaker(tokenizer, model.info.vocab_size)
        self._check_short_blocks()
        self.max_context = self._choose_context()
        self.apply_thread_count()
        self.memory = plan_memory(model, self.config, self.max_context)
        graphs = plan_graphs(model, self.config, self.memory, recorder)
        reserved = 0 if graphs is None else graphs.nbytes
        self._caches = allocate(model, self.config, self.memory, self.max_context, reserved)
        self._uniform = self._uniform_rounds(draws)
        self._scheduler = self._new_scheduler()
        self._insert_delete = InsertDelete(model.info, self.config.max_slots)
        interval = self.config.expert_statistics_interval
        self._rounds = Rounds(
            model,
            self._caches,
            ExpertStatistics(model.info, model.device, interval),
            None if graphs is None else graphs.captured(self._caches),
        )
        self._outbox: list[BlockResult] = []
        self._failed_rounds = 0

    def _choose_context(self) -> int:
        wanted, possible = self.config.max_context, self.model.info.max_context
        if wanted is not None and wanted > possible:
            raise ConfigError(f"max_context: {wanted} is too much; the model allows {possible}")
        return possible if wanted is None else wanted

    def _check_short_blocks(self) -> None:
        if self.config.truncate_last_block and not self.model.info.allows_short_blocks:
            raise ConfigError(
                f"truncate_last_block: not possible with this {self.model.info.model_type} model, "
                "which works on whole blocks; leave it off"
            )

    def _new_scheduler(self) -> Scheduler:
        return Scheduler(
            self.config.max_slots,
            self.model.info.mask_token_id,
            self.config.prefill_token_budget,
            self.memory,
            BlockOpening(
                None if self._uniform is None else self._uniform.start_canvas,
                self.config.truncate_last_block,
                self.config.load_aware,
                self.model.info.control_token_ids,
            ),
        )

    def _uniform_rounds(self, draws: DrawSource | None) -> UniformRounds | None:
        info = self.model.info
        if info.uniform is None:
            return None
        assert isinstance(self.model, ConditionedModel), "random canvases need signals"
        source = NoiseDraws(info.vocab_size) if draws is None else draws
        return UniformRounds(self.model, self.config.max_slots, source)

    def apply_thread_count(self) -> None:
        """Set torch's CPU threads; must also be called on the thread that runs ``step``."""
        if self.config.num_threads is not None:
            torch.set_num_threads(self.config.num_threads)

    @property
    def free_slots(self) -> int:
        return self._scheduler.table.free_slots

    @property
    def has_work(self) -> bool:
        """Whether ``step`` has something to do or to hand out."""
        return self._scheduler.has_work or bool(self._outbox)

    @property
    def counters(self) -> Counters:
        return self._scheduler.counters

    @property
    def page_counts(self) -> PageCounts:
        """How much of the memory for keys and values is taken. Any thread may ask."""
        return self._scheduler.memory.page_counts

    @property
    def expert_counts(self) -> ExpertCounts | None:
        """Which experts were used, as last published; None until then. Any thread may ask."""
        return self._rounds.statistics.published

    @property
    def step_counts(self) -> StepCounts:
        """How many rounds were replayed and how many were not. Any thread may ask."""
        return self._rounds.counts

    def publish_statistics(self) -> ExpertCounts | None:
        """Bring ``expert_counts`` up to date; for moments when no round runs."""
        return self._rounds.statistics.catch_up()

    def validate(self, request: Request) -> None:
        """Raise RequestError, naming field, value and allowed range, if it cannot be honoured."""
        check_request(
            request, self.model.info, self.config, self.max_context, self._tokenizer is not None
        )
        check_fits(request, self.memory)
        check_constraint(request, self.model.info, self._constraints)

    def add_request(self, request: Request) -> None:
        """Check ``request`` and give it a slot; CapacityError when none is free."""
        self.validate(request)
        has_results = any(result.request_uid == request.uid for result in self._outbox)
        if has_results or self._scheduler.is_running(request.uid):
            raise RequestError(f"uid: {request.uid} is already running; it must be unique")
        info = self.model.info
        resolved = resolve_decoding(request, info)
        stops = None
        if request.stop_strings and self._tokenizer is not None:
            stops = _StopSearch(self._tokenizer, request)
        self._scheduler.admit(
            replace(request, eos_ids=resolved.eos_ids, decoding=resolved.decoding),
            resolved.block_length,
            resolved.threshold,
            info.block_anchor == "zero",
            stops,
            self._constraints.make(request),
            self._think_watch(request),
        )

    def _think_watch(self, request: Request) -> ThinkWatch | None:
        own = request.thinking
        if own is None or self._tokenizer is None:
            return None
        finder = ThinkTokens(self._tokenizer, own.start, own.end, own.is_open)
        return ThinkWatch(finder, own.budget, own.end_ids)

    def set_pressure(self, pressure: float) -> None:
        """How hard requests press for slots, 0 to 1; blocks that open from now on go by it."""
        assert 0.0 <= pressure <= 1.0, "a share"
        self._scheduler.table.pressure = pressure

    def cancel(self, uid: int, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """End a request in whatever phase it is; the next ``step`` hands out its final result.

        A request that is not running (any more) is left alone.
        """
        result = self._scheduler.stop(uid, reason)
        if result is not None:
            self._outbox.append(result)

    def step(self) -> list[BlockResult]:
        """One round; the blocks it finished and the final results of cancelled requests."""
        for uid in self._scheduler.expired(time.monotonic()):
            self.cancel(uid, FinishReason.TIMEOUT)
        plan = self._scheduler.plan()
        if plan is not None:
            # Raises only when the engine is dead; what is in the outbox is not lost then.
            self._outbox += self._run(plan)
            if self.config.check_invariants:
                self._scheduler.check()
        results, self._outbox = self._outbox, []
        return results

    def _run(self, plan: RoundPlan) -> list[BlockResult]:
        try:
            with torch.inference_mode():
                if plan.work is not None:
                    self._caches.prepare(plan.work)
                decisions = self._forward(plan)
            self.model.check()
        except EngineDeadError:
            raise
        except Exception as error:
            logger.exception("a round failed")
            return self._fail_round(plan, error)
        self._failed_rounds = 0
        return self._scheduler.apply(plan, decisions)

    def _forward(self, plan: RoundPlan) -> Decisions:
        table = self._scheduler.table
        if self._uniform is None:
            certifier = self._scheduler.certifier
            return run_round(self._rounds, table, plan, self._insert_delete, certifier)
        return self._uniform.run(self._rounds, table, plan, self._scheduler.certifier)

    def _fail_round(self, plan: RoundPlan, error: Exception) -> list[BlockResult]:
        self._failed_rounds += 1
        text = f"the engine failed in this round: {type(error).__name__}: {_one_line(error)}"
        results = self._scheduler.fail_round(plan, text)
        if self._failed_rounds >= MAX_FAILED_ROUNDS:
            self._outbox += results
            dead = f"{self._failed_rounds} rounds failed in a row; {text}"
            raise EngineDeadError(dead) from error
        return results

    def check(self) -> None:
        """Raise EngineDeadError when the model has died while there was nothing to do."""
        self.model.check()

    def fail_all(self, error: str) -> list[BlockResult]:
        """End every request with an error text; results not yet handed out come first."""
        results, self._outbox = self._outbox, []
        return results + self._scheduler.fail_all(error)

    def warm_up(self) -> None:
        """Run every kind of round once (prefill, preview, riding commit, autoregressive).

        Raises EngineDeadError when the model cannot run; counters start from zero afterwards.
        """
        assert not self.has_work, "warm-up needs an idle engine"
        longest = min(self.max_context, longest_request(self.memory))
        for requests in warm_up_requests(self.model.info, self.config, longest):
            for request in requests:
                self.add_request(request)
            while self.has_work:
                for result in self.step():
                    if result.error is not None:
                        raise EngineDeadError(f"warm-up failed: {result.error}")
        with torch.inference_mode():
            self._rounds.capture()
        self._scheduler = self._new_scheduler()
        self._rounds.restart()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or "no message"
