"""The typer application: arguments in, exit code out. The work is done by its neighbours."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import Enum
from typing import Annotated, Any

import typer

from ..connection import DEFAULT_URL, URL_VARIABLE
from ..errors import ClientError
from ..sync import Client
from ..types import Health
from .chat import Chat
from .exits import DONE, FAILED, exit_code
from .flags import request_options, with_flags
from .generate import generate, read_input
from .screen import Screen


class Format(str, Enum):
    TEXT = "text"
    JSON = "json"


app = typer.Typer(
    help="Talk to a block-diffusion model behind Triton Inference Server.",
    epilog=f"The server's gRPC address comes from --url or {URL_VARIABLE}. "
    "Exit codes: 0 done, 2 bad usage or bad input, 1 anything else.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Url = Annotated[
    str, typer.Option("--url", envvar=URL_VARIABLE, help="gRPC address: host:port or grpcs://...")
]
Model = Annotated[str, typer.Option("--model", help="Name of the model to call.")]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print the result.")]

_GENERATE_HELP = """Answer one prompt; blocks appear as they arrive.

The prompt is the argument, or stdin when it is "-" or left out. It is raw text to continue; with
--chat it is a user's message, which is what chat models such as the demo model answer.

\b
Examples:
  blockdiff-client generate --chat "sort 52 7 31 88"
  echo "reverse stone" | blockdiff-client generate --chat --max-tokens 32
  blockdiff-client generate --messages @chat.json --tools tools.json --format json
  blockdiff-client generate --chat "copy hello" --threshold 0.95 --block-length 16 --deadline 10
"""

_CHAT_HELP = f"""Keep a conversation; Ctrl-C cancels the running answer, Ctrl-D leaves.

In it, {"/reset forgets the conversation, /system TEXT sets the system message."}

\b
Examples:
  blockdiff-client chat
  blockdiff-client chat --url gpu1:8001 --thinking --max-tokens 256
  blockdiff-client chat --system "Answer briefly." --quality high
"""

_HEALTH_HELP = """Ask whether the server is live and ready; exit code 0 means it can answer.

\b
Examples:
  blockdiff-client health
  blockdiff-client health --url gpu1:8001 --format json
"""


@contextmanager
def _one_line_errors(screen: Screen) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        screen.error(str(error))
        raise typer.Exit(exit_code(error)) from None
    except KeyboardInterrupt:
        screen.error("interrupted")
        raise typer.Exit(FAILED) from None


@app.command("generate", help=_GENERATE_HELP)
@with_flags
def generate_command(
    options: dict[str, Any],
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads stdin.")] = None,
    messages: Annotated[
        str | None, typer.Option("--messages", help="Chat messages as JSON, or @FILE.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a user's message.")] = False,
    request_id: Annotated[str | None, typer.Option("--request-id", help="Id for logs.")] = None,
    output: FormatOption = Format.TEXT,
    model: Model = "ensemble",
    url: Url = DEFAULT_URL,
) -> None:
    screen = Screen()
    with _one_line_errors(screen):
        request = read_input(prompt, messages, as_chat=chat) | request_options(options)
        with Client(url, model=model) as client:
            request["request_id"] = request_id
            generate(client, screen, request, as_json=output is Format.JSON)


@app.command("chat", help=_CHAT_HELP, short_help="Keep a conversation in the terminal.")
@with_flags
def chat_command(
    options: dict[str, Any],
    system: Annotated[str | None, typer.Option("--system", help="The system message.")] = None,
    model: Model = "ensemble",
    url: Url = DEFAULT_URL,
) -> None:
    screen = Screen()
    with _one_line_errors(screen), Client(url, model=model) as client:
        code = Chat(client, screen, request_options(options), system).run()
        raise typer.Exit(code)


@app.command("health", help=_HEALTH_HELP, short_help="Ask whether the server can answer.")
def health_command(
    output: FormatOption = Format.TEXT,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds per question.")] = 5.0,
    model: Model = "ensemble",
    url: Url = DEFAULT_URL,
) -> None:
    screen = Screen()
    with _one_line_errors(screen), Client(url, model=model) as client:
        health = client.health(timeout)
        if output is Format.JSON:
            fields = {**asdict(health), "is_healthy": health.is_healthy}
            screen.line(json.dumps(fields, ensure_ascii=False))
        else:
            for line in _health_lines(health):
                screen.line(line)
        raise typer.Exit(DONE if health.is_healthy else FAILED)


def _health_lines(health: Health) -> Iterator[str]:
    state = "ready" if health.is_healthy else "not ready"
    if health.error:
        state = f"unreachable ({health.error})"
    yield f"{health.url}: {state}{' · ' + health.server_version if health.server_version else ''}"
    for model in health.models:
        reason = f" ({model.reason})" if model.reason else ""
        yield f"  {model.name}: {'ready' if model.is_ready else 'not ready'}{reason}"
    for name, value in health.limits.items():
        yield f"  {name} = {value}"


def main() -> None:
    """Entry point of the `blockdiff-client` script."""
    try:
        app(prog_name="blockdiff-client")
    except BrokenPipeError:
        # The reader went away; keep the interpreter from complaining about the final flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
