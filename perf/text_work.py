"""`python -m perf.text_work`: what text costs around the engine, on one core.

Before it, a request: fields checked, template rendered, prompt encoded. After it, a block: text,
thinking and tool calls. Beside it, what the engine's own thread looks for. With stop words, tools
and thinking, without a server.
"""

import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

from blockdiff.serving.answer import AnswerText
from blockdiff.serving.preprocessor import Preprocessor
from blockdiff.serving.settings import Settings
from blockdiff.text import TAGS, TextStream, ThinkTokens, Tokenizer
from perf.command import run_command

CHECKPOINT = Path(__file__).resolve().parents[1] / "demo" / "checkpoint"
BLOCK = 32
TARGET_MS = 1.0
WARM_UP = 50
STOP_WORDS = [f"stop number {number}" for number in range(14)] + ["\nUser:", "</answer>"]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"get_{thing}",
            "description": f"The {thing} of a city, now or at a given time.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "name of the city"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    }
    for thing in ("weather", "time", "traffic", "prices")
]
CALL = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Genève", "days": 3}}\n</tool_call>'
)
ANSWER = (
    "<think>\nthe user wants the weather of a city; stop numbers are no stop\n"
    + "add the carries of both numbers, 你好 👩‍👩‍👧 and so on\n" * 12
    + "</think>\n\nIn a moment. "
    + "one two three four five six seven " * 24
    + CALL
    + "\nand then some more text " * 8
)


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50_ms": 1e3 * cuts[49], "p99_ms": 1e3 * cuts[98]}


def timed(work: Iterator[Callable[[], Any]], count: int) -> dict[str, float]:
    """Processor time of each of ``count`` pieces of ``work``, after some that do not count."""
    seconds = []
    for number in range(count + WARM_UP):
        piece = next(work)
        began = time.thread_time()
        piece()
        if number >= WARM_UP:
            seconds.append(time.thread_time() - began)
    return percentiles(seconds)


def requests(tokenizer: Tokenizer, model: Path) -> Iterator[Callable[[], Any]]:
    """Chats of three turns with tools, as ``preprocessing`` takes them."""
    settings = Settings(model=model, relay_socket=Path("unused.sock"))
    preprocessor = Preprocessor(tokenizer, settings, 4096)
    number = 0
    while True:
        number += 1
        turns = [
            {"role": "user", "content": f"sort {number} 5 2 <|im_end|> please"},
            {"role": "assistant", "content": "2 5"},
            {"role": "user", "content": "and what is the weather there? " * 4},
        ]
        given = {
            "messages": json.dumps(turns),
            "tools": json.dumps(TOOLS),
            "stop_words": STOP_WORDS,
            "enable_thinking": True,
            "thinking_budget": 64,
            "max_tokens": 128,
        }
        tensors: dict[str, npt.NDArray[Any]] = {
            name: np.array([value if isinstance(value, list) else [value]], _dtype(value))
            for name, value in given.items()
        }
        yield functools.partial(preprocessor.build, tensors, {})


def _dtype(value: Any) -> type:
    if isinstance(value, str | list):
        return np.object_
    return np.bool_ if isinstance(value, bool) else np.int32


def blocks(tokenizer: Tokenizer, model: Path) -> Iterator[Callable[[], Any]]:
    """Blocks of one answer after the other, as ``postprocessing`` takes them."""
    ids = tokenizer.encode(ANSWER, allow_special=True)
    (first,) = [next(requests(tokenizer, model))()]
    _, spec = first
    context = spec.text.model_copy(update={"think": "unknown"})
    while True:
        answer = AnswerText(tokenizer, 1, context)
        for start in range(0, len(ids), BLOCK):
            part, final = ids[start : start + BLOCK], start + BLOCK >= len(ids)
            yield functools.partial(answer.push, part, "", final)


def searches(tokenizer: Tokenizer, model: Path) -> Iterator[Callable[[], Any]]:
    """What the engine's thread looks for in a block: stop strings, and the end of thinking."""
    ids = tokenizer.encode(ANSWER, allow_special=True)
    while True:
        stream = TextStream(tokenizer, STOP_WORDS)
        thought = ThinkTokens(tokenizer, TAGS.start, TAGS.end, is_open=False)
        for start in range(0, len(ids), BLOCK):
            part = ids[start : start + BLOCK]
            yield functools.partial(_search, stream, thought, part)


def _search(stream: TextStream, thought: ThinkTokens, part: list[int]) -> None:
    stream.push(part)
    thought.push(part)


PARTS = {
    "a request, before": requests,
    "a block, after": blocks,
    "a block, in the engine": searches,
}


def run(
    model: Annotated[Path, typer.Option(help="Folder with tokenizer and template.")] = CHECKPOINT,
    count: Annotated[int, typer.Option(min=200, help="Pieces timed of each part.")] = 4000,
    as_json: Annotated[bool, typer.Option("--json", help="Print numbers only.")] = False,
) -> None:
    """Milliseconds of processor time for text, median and 99th percentile, against 1 ms."""
    tokenizer = Tokenizer.load(model)
    found = {name: timed(work(tokenizer, model), count) for name, work in PARTS.items()}
    if as_json:
        print(json.dumps(found))
        return
    table = Table("", "p50, ms", "p99, ms", f"under {TARGET_MS:g} ms")
    for name, times in found.items():
        is_met = "yes" if times["p99_ms"] < TARGET_MS else "no"
        table.add_row(name, f"{times['p50_ms']:.3f}", f"{times['p99_ms']:.3f}", is_met)
    Console().print(table)


if __name__ == "__main__":
    run_command("text_work", run)
