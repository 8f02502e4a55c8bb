"""The ``blockdiff`` command. Knows the commands' names; imports only the one that is asked for."""

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from blockdiff.errors import BlockdiffError, ConfigError, RequestError

_INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """Where a command lives and what the help says of it."""

    module: str
    function: str
    summary: str
    examples: tuple[str, ...]


# Importing torch takes seconds, so --help of the whole program must not import the commands.
COMMANDS = {
    "serve": Command(
        "blockdiff.cli.serve",
        "serve",
        "Serve a checkpoint on Triton Inference Server.",
        (
            "blockdiff serve --model demo/checkpoint",
            "blockdiff serve --model demo/checkpoint --http-port 0 --grpc-port 0 --format json",
            "blockdiff serve --model /models/m --host 0.0.0.0 --slots 16 --max-queue-size 64",
        ),
    ),
    "generate": Command(
        "blockdiff.cli.generate",
        "generate",
        "Generate text without a server.",
        (
            "blockdiff generate --model demo/checkpoint --messages "
            """'[{"role": "user", "content": "sort 52 7 31"}]'""",
            "blockdiff generate --model demo/checkpoint --requests requests.jsonl --concurrency 4",
        ),
    ),
    "logits": Command(
        "blockdiff.cli.logits",
        "logits",
        "Write logits and states of chosen phases.",
        (
            "blockdiff logits --model demo/checkpoint --phase prefill --input-ids 1,2,3 "
            "--out prefill.safetensors",
        ),
    ),
    "eval": Command(
        "blockdiff.cli.eval",
        "evaluate",
        "Measure accuracy and tokens per forward.",
        (
            "blockdiff eval --model demo/checkpoint",
            "blockdiff eval --model demo/checkpoint --dtype int4 --compare demo/checkpoint",
        ),
    ),
    "plan": Command(
        "blockdiff.cli.plan",
        "plan",
        "Say what memory a model needs and how many requests fit, or how fast it could be at most.",
        (
            "blockdiff plan --model demo/checkpoint --device-memory 2GiB",
            "blockdiff plan --model config.json --device-memory 80GiB --dtype int8 "
            "--tensor-parallel 2 --max-context 32768",
            "blockdiff plan --model config.json --speed --gpu h100 --dtype fp8 --png speed.png",
        ),
    ),
    "weights": Command(
        "blockdiff.cli.weights",
        "app",
        "List, verify, inspect and quantise the files of a checkpoint.",
        (
            'blockdiff weights manifest /models/m --source https://example.org/m --revision "v1"',
            "blockdiff weights verify /models/m",
            "blockdiff weights inspect demo/checkpoint --format json",
            "blockdiff weights quantize demo/checkpoint /models/demo-int4 --dtype int4 "
            "--group-size 32",
        ),
    ),
    "doctor": Command(
        "blockdiff.cli.doctor",
        "doctor",
        "Check what this machine needs to serve.",
        ("blockdiff doctor", "blockdiff doctor --model demo/checkpoint --format json"),
    ),
}


def build_app(wanted: str | None) -> typer.Typer:
    """The program with its real ``wanted`` command and placeholders for the others."""
    app = typer.Typer(
        name="blockdiff",
        help="Block-diffusion language models: engine and Triton server in one command.",
        epilog="Examples: blockdiff serve --model demo/checkpoint; "
        "blockdiff eval --model demo/checkpoint --limit 40",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        no_args_is_help=True,
    )
    app.callback()(_no_options)
    for name, command in COMMANDS.items():
        if name == wanted:
            _add(app, name, command)
        else:
            app.command(name, help=command.summary)(_placeholder())
    return app


def _add(app: typer.Typer, name: str, command: Command) -> None:
    """The real command, or the group of commands, with its examples."""
    found = getattr(importlib.import_module(command.module), command.function)
    epilog = "\n\n".join(["Examples:", *command.examples])
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=name, help=command.summary, epilog=epilog)
    else:
        app.command(name, epilog=epilog)(found)


def _no_options() -> None:
    """Without a callback, typer drops the command's name when there is only one."""


def _placeholder() -> Callable[[], None]:
    def command() -> None:
        raise AssertionError("a placeholder command cannot run")

    return command


def run(arguments: Sequence[str]) -> int:
    """Run one command line; returns the exit code after printing at most one line of error."""
    words = list(arguments) or ["--help"]
    wanted = next((word for word in words if not word.startswith("-")), None)
    try:
        code = build_app(wanted)(words, standalone_mode=False, prog_name="blockdiff")
        # The parser turns Ctrl-C into 130 in some releases; ours is 1 like every other failure.
        if code == _INTERRUPTED:
            return fail("interrupted", 1)
        return code if isinstance(code, int) else 0
    except (ConfigError, RequestError) as error:
        return fail(error, 2)
    except BlockdiffError as error:
        return fail(error, 1)
    except (KeyboardInterrupt, typer.Abort):
        return fail("interrupted", 1)
    except Exception as error:
        message = usage_message(error)
        if message is None:
            raise
        return fail(message, 2)


def usage_message(error: Exception) -> str | None:
    """The text of a usage error of the command-line parser; None for any other exception."""
    # The parser's exception classes moved between releases of typer: go by what they offer.
    render: Callable[[], Any] | None = getattr(error, "format_message", None)
    return str(render()) if callable(render) and hasattr(error, "exit_code") else None


def fail(message: object, code: int) -> int:
    """Print one line of error; returns the exit code."""
    # names in files may hold anything, also what a terminal would obey
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in " ".join(str(message).split()))
    print(f"blockdiff: {line}", file=sys.stderr)
    return code


def main() -> None:
    """Entry point of the console script."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
