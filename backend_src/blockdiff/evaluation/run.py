"""Runs a set of prompts under many decoding settings and scores the outputs.

Knows the engine and the checkers; nothing of files, flags, tables or pictures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from blockdiff.core import DecodingParams, Mode, Request
from blockdiff.engine import Engine
from blockdiff.evaluation.checkers import CHECKERS
from blockdiff.jobs import Job, Outcome, output_text, require_success, run_jobs
from blockdiff.text import Tokenizer

ALL_TASKS = "all"


@dataclass(frozen=True)
class Question:
    """One prompt with its answer. Filled from a line of the prompts file."""

    task: str
    input_ids: tuple[int, ...]
    expected: str
    check: str = "exact"


@dataclass(frozen=True)
class Setting:
    """One way to decode; ``kind`` is threshold, steps or autoregressive."""

    kind: str
    value: float | None
    decoding: DecodingParams

    @property
    def label(self) -> str:
        return self.kind if self.value is None else f"{self.kind} {self.value:g}"


@dataclass(frozen=True)
class Score:
    """Sums over some prompts of one setting."""

    setting: Setting
    task: str
    prompts: int
    correct: int
    output_tokens: int
    forwards: int
    seconds: float

    @property
    def exact_match(self) -> float:
        return self.correct / self.prompts

    @property
    def tokens_per_forward(self) -> float:
        return self.output_tokens / max(self.forwards, 1)

    @property
    def forwards_per_token(self) -> float:
        return self.forwards / max(self.output_tokens, 1)

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / max(self.seconds, 1e-9)

    def as_json(self) -> dict[str, Any]:
        return {
            "setting": self.setting.label,
            "kind": self.setting.kind,
            "value": self.setting.value,
            "task": self.task,
            "prompts": self.prompts,
            "correct": self.correct,
            "output_tokens": self.output_tokens,
            "forwards": self.forwards,
            "seconds": round(self.seconds, 4),
            "exact_match": round(self.exact_match, 4),
            "tokens_per_forward": round(self.tokens_per_forward, 4),
            "tokens_per_second": round(self.tokens_per_second, 2),
        }


def make_settings(
    thresholds: Sequence[float], steps: Sequence[int], with_autoregressive: bool
) -> list[Setting]:
    settings = [Setting("threshold", t, DecodingParams(threshold=t)) for t in thresholds]
    settings += [Setting("steps", s, DecodingParams(denoise_steps=s)) for s in steps]
    if with_autoregressive:
        single = DecodingParams(mode=Mode.AUTOREGRESSIVE)
        settings.append(Setting("autoregressive", None, single))
    return settings


def make_request(question: Question, uid: int, setting: Setting, max_tokens: int) -> Request:
    return Request(uid, question.input_ids, max_tokens, decoding=setting.decoding)


def measure(
    engine: Engine,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    settings: Sequence[Setting],
    max_tokens: int,
) -> Iterator[Score]:
    """One score per task and then one over all tasks, setting by setting.

    Tasks run one after the other, so that each has its own time.
    """
    tasks = list(dict.fromkeys(question.task for question in questions))
    for setting in settings:
        scores = []
        for task in tasks:
            chosen = [question for question in questions if question.task == task]
            scores.append(run_task(engine, tokenizer, chosen, setting, max_tokens)[0])
            yield scores[-1]
        yield add_scores(setting, scores)


def run_task(
    engine: Engine,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    setting: Setting,
    max_tokens: int,
) -> tuple[Score, list[Outcome]]:
    """The questions of one task: their score, and every output in their order."""
    jobs = [
        Job(make_request(question, uid, setting, max_tokens))
        for uid, question in enumerate(questions)
    ]
    outcomes = run_jobs(engine, jobs)
    require_success(outcomes)
    eos_ids = engine.model.info.eos_token_ids
    correct = 0
    for question, outcome in zip(questions, outcomes, strict=True):
        # Thinking and tool-call tags are part of the answer, so nothing is skipped.
        text = output_text(outcome, eos_ids, tokenizer, skip_special=False)
        correct += CHECKERS[question.check](text, question.expected)
    score = Score(
        setting=setting,
        task=questions[0].task,
        prompts=len(questions),
        correct=correct,
        output_tokens=sum(len(outcome.output_ids) for outcome in outcomes),
        forwards=sum(decoding_forwards(outcome) for outcome in outcomes),
        seconds=max(outcome.seconds for outcome in outcomes),
    )
    return score, outcomes


def decoding_forwards(outcome: Outcome) -> int:
    """Forwards that decided tokens: previews, or one per token in autoregressive mode.

    Prefill is not counted, except that an autoregressive first token comes from its last row.
    """
    counts = outcome.forwards
    is_single = outcome.job.request.decoding.mode is Mode.AUTOREGRESSIVE
    return counts.commit + 1 if is_single else counts.preview


def add_scores(setting: Setting, scores: Sequence[Score]) -> Score:
    """The score over all tasks."""
    return Score(
        setting=setting,
        task=ALL_TASKS,
        prompts=sum(score.prompts for score in scores),
        correct=sum(score.correct for score in scores),
        output_tokens=sum(score.output_tokens for score in scores),
        forwards=sum(score.forwards for score in scores),
        seconds=sum(score.seconds for score in scores),
    )
