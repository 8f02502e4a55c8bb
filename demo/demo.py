"""`make demo`: a real server, three prompts, every block as it arrives, and nothing left running.

Knows the demo's prompts and answers; serving is `blockdiff serve`'s code, calling is the client's.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from blockdiff.cli.checkpoint_check import check_checkpoint
from blockdiff.cli.main import fail
from blockdiff.cli.serve import make_server
from blockdiff.cli.serve_options import ServeOptions
from blockdiff.embedded import find_installation
from blockdiff.errors import BlockdiffError, ConfigError
from blockdiff_client import BlockEvent, Client, Generation
from blockdiff_client.errors import ClientError

CHECKPOINT = Path(__file__).resolve().parent / "checkpoint"
STYLES = ("cyan", "magenta")


@dataclass(frozen=True)
class Example:
    """One prompt and how its answer is judged."""

    title: str
    prompt: str
    expected: str
    is_right: Callable[[Generation], bool]
    options: dict[str, Any] = field(default_factory=dict)


def tool(name: str, *arguments: str) -> dict[str, Any]:
    """An OpenAI-style tool description, as the model saw them in training."""
    properties = {argument: {"type": "string"} for argument in arguments}
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def calls_weather(answer: Generation) -> bool:
    """The right function with the right arguments, as the server parsed the call."""
    if len(answer.tool_calls) != 1:
        return False
    call = answer.tool_calls[0]
    try:
        arguments = call.parsed_arguments()
    except ValueError:
        return False
    return call.name == "get_weather" and arguments == {"city": "Paris", "unit": "celsius"}


EXAMPLES = (
    Example(
        "sort",
        "sort 52 7 31 88",
        "7 31 52 88",
        lambda answer: answer.text.strip() == "7 31 52 88",
        {"enable_thinking": False},
    ),
    Example(
        "tool call",
        "what is the weather in Paris in celsius",
        'get_weather({"city": "Paris", "unit": "celsius"})',
        calls_weather,
        {
            "enable_thinking": False,
            "tools": [tool("get_weather", "city", "unit"), tool("get_time", "city")],
        },
    ),
    Example(
        "Chinese arithmetic",
        "三加五等于几",
        "八",
        lambda answer: answer.text.strip() == "八",
        {"enable_thinking": False},
    ),
)


def run_example(client: Client, example: Example, console: Console) -> tuple[Generation, bool]:
    """Send one prompt, print its blocks as they come, judge the answer."""
    console.print(Text(f"\n{example.title}: ", style="bold") + Text(example.prompt))
    messages = [{"role": "user", "content": example.prompt}]
    with client.stream(messages=messages, max_tokens=96, **example.options) as stream:
        for block in stream:
            console.print(describe_block(block))
        answer = stream.generation
    is_right = example.is_right(answer)
    verdict = Text("right", style="green") if is_right else Text("WRONG", style="bold red")
    if not is_right:
        verdict += Text(f", expected {example.expected}", style="red")
    console.print(Text("  => ") + Text(shown_answer(answer)) + Text("  ") + verdict)
    return answer, is_right


def describe_block(block: BlockEvent) -> Text:
    """One line: number, time of arrival, denoise steps, tokens and what the block says."""
    style = STYLES[block.block_index % len(STYLES)]
    said = block.reasoning + block.text
    for call in block.tool_calls:
        said += f"{call.name}({call.arguments})"
    steps = f"{block.denoise_steps} step{'s' if block.denoise_steps != 1 else ' '}"
    head = f"  block {block.block_index}  {block.elapsed * 1000:6.0f} ms  {steps:8}"
    return Text(f"{head}  {block.num_output_tokens:2} tokens  ") + Text(repr(said), style=style)


def shown_answer(answer: Generation) -> str:
    """The answer as one line."""
    calls = [f"{call.name}({call.arguments})" for call in answer.tool_calls]
    return " ".join([answer.text.strip(), *calls]).strip() or "(nothing)"


def run_all(client: Client, console: Console) -> int:
    """All examples; returns how many were right."""
    answers, verdicts = [], []
    for example in EXAMPLES:
        answer, is_right = run_example(client, example, console)
        answers.append(answer)
        verdicts.append(is_right)
    tokens = sum(answer.num_output_tokens for answer in answers)
    steps = sum(answer.denoise_steps for answer in answers)
    seconds = sum(answer.seconds for answer in answers)
    console.print(
        f"\n{tokens} tokens in {seconds:.2f} s: {tokens / max(seconds, 1e-9):.0f} tokens/s; "
        f"{tokens / max(steps, 1):.2f} tokens per forward (TPF), {steps} denoise steps"
    )
    console.print(f"{sum(verdicts)} of {len(EXAMPLES)} answers are right")
    return sum(verdicts)


def demo(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = CHECKPOINT,
    # More threads only get in each other's way at this model's size.
    threads: Annotated[int, typer.Option(help="CPU threads of the engine.")] = 1,
) -> None:
    """Start the server on free ports, send three prompts, stop the server."""
    console = Console(highlight=False, soft_wrap=True)
    started = time.monotonic()

    def say(line: str) -> None:
        console.print(f"{time.monotonic() - started:6.1f} s  {line}", style="dim")

    say(f"checking {model}")
    check_checkpoint(model)
    options = ServeOptions(
        model=model, http_port=None, grpc_port=None, metrics_port=None, threads=threads
    )
    installation = find_installation(say)
    with tempfile.TemporaryDirectory(prefix="blockdiff-demo-") as folder:
        say(f"starting tritonserver {installation.version} on free ports")
        with make_server(options, Path(folder), installation) as server:
            server.start(progress=say)
            say(f"ready at gRPC {server.grpc_url} and {server.http_url}")
            with Client(server.grpc_url, deadline=120) as client:
                right = run_all(client, console)
            say("stopping the server")
        say("stopped")
    if right != len(EXAMPLES):
        raise typer.Exit(1)


def main() -> int:
    """Run the demo; an expected error is one line."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(demo)
    try:
        code = app(standalone_mode=False)
        return code if isinstance(code, int) else 0
    except ConfigError as error:
        return fail(error, 2)
    except (BlockdiffError, ClientError) as error:
        return fail(error, 1)
    except KeyboardInterrupt:
        return fail("interrupted", 1)


if __name__ == "__main__":
    sys.exit(main())
