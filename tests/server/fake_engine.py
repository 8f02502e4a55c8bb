"""An engine without a model: its requests say what it answers, how slowly and how it fails.

The prompt is a JSON object: ``text`` (the answer), ``block`` (tokens per block), ``delay`` (seconds
per block), ``first_delay``, ``fail_at`` (block index whose round fails), ``die_at`` (kills the
engine thread), ``hang_at`` (the round never ends). ``max_tokens``, EOS and stop strings count as
in the real engine. Runs under the real ``EngineLoop``.
"""

import json
import time
from dataclasses import dataclass, replace

from blockdiff.core import (
    BlockResult,
    Canvas,
    FinishReason,
    ForwardCounts,
    PlaceState,
    Request,
)
from blockdiff.engine import EngineConfig
from blockdiff.engine.rounds import StepCounts
from blockdiff.errors import CapacityError, RequestError
from blockdiff.scheduler.counters import Counters, PageCounts
from blockdiff.text import TextStream, Tokenizer

TICK_SECONDS = 0.002


@dataclass
class _Answer:
    request: Request
    token_ids: list[int]
    script: dict
    stream: TextStream
    due: float
    block: int = 0
    step: int = 0
    at: int = 0


class FakeEngine:
    """What ``EngineLoop`` needs of ``Engine``."""

    def __init__(self, tokenizer: Tokenizer, config: EngineConfig) -> None:
        self.config = config
        self.counters = Counters(forwards=ForwardCounts())
        self._tokenizer = tokenizer
        self._answers: dict[int, _Answer] = {}
        self._outbox: list[BlockResult] = []

    @property
    def has_work(self) -> bool:
        return bool(self._answers or self._outbox)

    def apply_thread_count(self) -> None:
        pass

    def validate(self, request: Request) -> None:
        length = request.decoding.block_length
        if length is not None and length > 32:
            raise RequestError(f"block_length: {length} is out of range; allowed are 1 to 32")
        self._script(request)

    def add_request(self, request: Request) -> None:
        if len(self._answers) >= self.config.max_slots:
            raise CapacityError("no free slot")
        script = self._script(request)
        ids = self._tokenizer.encode(script["text"], allow_special=True)
        eos = () if request.ignore_eos else self._tokenizer.special.eos[:1]
        stream = TextStream(self._tokenizer, request.stop_strings, min_tokens=request.min_tokens)
        due = time.monotonic() + script.get("first_delay", script.get("delay", 0.0))
        self._answers[request.uid] = _Answer(request, [*ids, *eos], script, stream, due)
        self.counters.requests += 1

    def cancel(self, uid: int, reason: FinishReason = FinishReason.CANCELLED) -> None:
        answer = self._answers.pop(uid, None)
        if answer is not None:
            self._outbox.append(self._final(answer, (), reason, ""))

    def step(self) -> list[BlockResult]:
        now = time.monotonic()
        for answer in list(self._answers.values()):
            if answer.request.deadline is not None and now > answer.request.deadline:
                self.cancel(answer.request.uid, FinishReason.TIMEOUT)
        results, self._outbox = self._outbox, []
        due = [answer for answer in self._answers.values() if answer.due <= now]
        if not due:
            time.sleep(TICK_SECONDS)
        results += [self._next_step(answer) for answer in due]
        self.counters.rounds += 1
        return results

    def check(self) -> None:
        pass

    expert_counts = None
    step_counts = StepCounts()
    page_counts = PageCounts(1, 1, 0)

    def set_pressure(self, pressure: float) -> None:
        pass

    def publish_statistics(self) -> None:
        pass

    def fail_all(self, error: str) -> list[BlockResult]:
        results, self._outbox = self._outbox, []
        answers, self._answers = list(self._answers.values()), {}
        return results + [self._failed(answer, error) for answer in answers]

    def _script(self, request: Request) -> dict:
        text = self._tokenizer.decode(request.input_ids)
        try:
            return json.JSONDecoder().raw_decode(text, text.index('{"text"'))[0]
        except ValueError:
            return {"text": text}

    def _next_step(self, answer: _Answer) -> BlockResult:
        """The next block; every second step of one is a canvas, for requests that watch."""
        if not answer.request.wants_canvases:
            return self._next_block(answer)
        step, answer.step = answer.step, 1 - answer.step
        ids = answer.token_ids[answer.at : answer.at + answer.script.get("block", 4)]
        states = [PlaceState.SETTLED, *[PlaceState.MASKED] * (len(ids) - 1)][: len(ids)]
        if step:
            states = [PlaceState.SETTLED] * len(ids)
        canvas = Canvas(step, answer.at, tuple(ids), (-0.5,) * len(ids), tuple(states))
        if step:
            return replace(self._next_block(answer), canvas=canvas)
        answer.due = time.monotonic() + answer.script.get("delay", 0.0)
        length = len(answer.request.input_ids)
        alone = BlockResult(answer.request.uid, answer.block, (), (), 0, length)
        return replace(alone, canvas=canvas, is_partial=True)

    def _next_block(self, answer: _Answer) -> BlockResult:
        script, request = answer.script, answer.request
        if script.get("die_at") == answer.block:
            raise MemoryError("scripted death")
        if script.get("hang_at") == answer.block:
            time.sleep(3600)
        if script.get("fail_at") == answer.block:
            self.counters.failed += 1
            return self._failed(self._answers.pop(request.uid), "scripted failure")
        left = request.max_tokens - answer.at
        size = min(script.get("block", 4), left, len(answer.token_ids) - answer.at)
        ids = answer.token_ids[answer.at : answer.at + size]
        answer.at += size
        answer.due = time.monotonic() + script.get("delay", 0.0)
        found = answer.stream.push(ids)
        if found.stop is not None:
            return self._end(answer, ids[: found.tokens_used], FinishReason.STOP, found.stop)
        if answer.at == len(answer.token_ids):
            return self._end(answer, ids, FinishReason.STOP, str(ids[-1]) if ids else "")
        if answer.at == request.max_tokens:
            return self._end(answer, ids, FinishReason.LENGTH, "")
        return self._result(answer, ids)

    def _end(self, answer: _Answer, ids: list[int], reason: FinishReason, stop: str) -> BlockResult:
        del self._answers[answer.request.uid]
        return self._final(answer, tuple(ids), reason, stop)

    def _final(
        self, answer: _Answer, ids: tuple[int, ...], reason: FinishReason, stop: str
    ) -> BlockResult:
        self.counters.finished += 1
        return self._result(answer, ids, is_final=True, finish_reason=reason, stop_reason=stop)

    def _result(self, answer: _Answer, ids, **ending) -> BlockResult:
        index, answer.block = answer.block, answer.block + 1
        self.counters.output_tokens += len(ids)
        self.counters.forwards.preview += 1
        return BlockResult(
            request_uid=answer.request.uid,
            block_index=index,
            token_ids=tuple(ids),
            log_probs=(-0.5,) * len(ids),
            denoise_steps=2,
            threshold=0.75 if index else 0.875,
            num_input_tokens=len(answer.request.input_ids),
            **ending,
        )

    def _failed(self, answer: _Answer, error: str) -> BlockResult:
        return self._result(answer, (), is_final=True, error=error)
