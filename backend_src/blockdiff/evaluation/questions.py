"""Lines of a prompts file as questions: prompts of the engine, each with its answer.

Knows the file's fields and the tokenizer; nothing of engines or of how a question is decoded.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blockdiff.errors import RequestError
from blockdiff.evaluation.checkers import CHECKERS
from blockdiff.evaluation.run import ALL_TASKS, Question
from blockdiff.serving.messages import parse_messages, parse_tools
from blockdiff.text import Tokenizer


class PromptLine(BaseModel):
    """A line of the prompts file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    task: str = Field(min_length=1)
    messages: list[dict[str, Any]]
    expected: str
    tools: list[dict[str, Any]] | None = None
    enable_thinking: bool | None = None
    check: str = "exact"


def read_questions(
    lines: Iterable[tuple[str, str]], tokenizer: Tokenizer, limit: int | None
) -> list[Question]:
    """Questions of lines, each with its place for errors; raises RequestError for a bad line.

    ``limit``: only so many, spread over the tasks.
    """
    questions = []
    for place, text in lines:
        try:
            questions.append(_question(text, tokenizer))
        except RequestError as error:
            raise RequestError(f"{place}{error}") from error
    return questions if limit is None else _spread(questions, limit)


def _question(text: str, tokenizer: Tokenizer) -> Question:
    try:
        line = PromptLine.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "line"
        raise RequestError(f"{field}: {first['msg']}") from error
    if line.check not in CHECKERS:
        raise RequestError(f"check: {line.check!r} is unknown; allowed: {', '.join(CHECKERS)}")
    if line.task == ALL_TASKS:
        raise RequestError(f"task: {ALL_TASKS!r} is the name of the sum over all tasks")
    messages = parse_messages(json.dumps(line.messages))
    tools = parse_tools(json.dumps(line.tools)) if line.tools else None
    ids = tokenizer.apply_chat_template(messages, tools, line.enable_thinking)
    return Question(line.task, tuple(ids), line.expected, line.check)


def _spread(questions: Sequence[Question], limit: int) -> list[Question]:
    """The first questions of every task in turn, ``limit`` in all, in their old order."""
    seen: dict[str, int] = {}
    turns = []
    for number, question in enumerate(questions):
        seen[question.task] = seen.get(question.task, -1) + 1
        turns.append((seen[question.task], number))
    return [questions[number] for number in sorted(n for _, n in sorted(turns)[:limit])]
