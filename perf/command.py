"""How a benchmark becomes a command: help, examples, and errors in one line."""

import sys
from collections.abc import Callable

import typer

from blockdiff.errors import BlockdiffError
from blockdiff.kernel_choice import use_kernels


def run_command(module: str, run: Callable[..., None], examples: str | None = None) -> None:
    """Run ``python -m perf.<module>``; ``run`` has typer's annotations."""
    app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
    app.command(epilog=examples)(run)
    try:
        use_kernels(None, "cpu")
        app(prog_name=f"python -m perf.{module}")
    except BlockdiffError as error:
        sys.exit(f"error: {error}")
