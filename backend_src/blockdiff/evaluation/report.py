"""How scores of ``blockdiff eval`` are shown: a table on the terminal, a picture as PNG.

Knows scores only; nothing of engines or prompts.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from blockdiff.errors import ConfigError
from blockdiff.evaluation.run import ALL_TASKS, Score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTE = (
    "TPF: output tokens / forwards that decide tokens (previews; one per token when "
    "autoregressive); prefill and riding commits are not counted. "
    "tokens/s: all requests of a task together, prefill included."
)
KINDS = {
    "threshold": ("tab:blue", "o", "confidence threshold"),
    "steps": ("tab:orange", "s", "fixed steps per block"),
    "autoregressive": ("tab:green", "*", "autoregressive"),
}


def print_table(scores: Sequence[Score], console: Console) -> None:
    """Three tables of settings by tasks: exact match, tokens per forward, tokens per second."""
    tasks = list(dict.fromkeys(score.task for score in scores))
    counts = {score.task: score.prompts for score in scores}
    names = ", ".join(f"{task} {counts[task]}" for task in tasks)
    for title, field, shape in (
        (f"exact match, % of prompts ({names})", "exact_match", "{:.1%}"),
        ("tokens per forward (TPF)", "tokens_per_forward", "{:.2f}"),
        ("tokens per second", "tokens_per_second", "{:.0f}"),
    ):
        console.print(title, style="bold", soft_wrap=True, highlight=False)
        console.print(_table(scores, tasks, field, shape))
    console.print(NOTE, style="dim", soft_wrap=True, highlight=False)


def _table(scores: Sequence[Score], tasks: Sequence[str], field: str, shape: str) -> Table:
    table = Table()
    table.add_column("setting", no_wrap=True)
    for task in tasks:
        style = "bold" if task == ALL_TASKS else None
        table.add_column(task, justify="right", style=style, no_wrap=True)
    for label in dict.fromkeys(score.setting.label for score in scores):
        found = {score.task: score for score in scores if score.setting.label == label}
        table.add_row(label, *(shape.format(getattr(found[task], field)) for task in tasks))
    return table


def draw(scores: Sequence[Score], path: Path, title: str) -> None:
    """Quality against forwards per token: all tasks on the left, each task on the right."""
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError("png: needs matplotlib; install blockdiff[eval]") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5.2))
    _draw_all(left, [score for score in scores if score.task == ALL_TASKS])
    _draw_tasks(right, [score for score in scores if score.task != ALL_TASKS])
    for axes in (left, right):
        axes.set_xlabel("forwards per output token (fewer is faster)")
        axes.set_ylabel("exact match, %")
        axes.set_ylim(top=101)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize=9)
    figure.suptitle(title)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise ConfigError(f"png: cannot write {path}: {error}") from error
    finally:
        pyplot.close(figure)


def _draw_all(axes: "Axes", scores: Sequence[Score]) -> None:
    axes.set_title("all tasks")
    for number, (kind, (color, marker, label)) in enumerate(KINDS.items()):
        line = [score for score in scores if score.setting.kind == kind]
        if not line:
            continue
        x = [score.forwards_per_token for score in line]
        y = [100 * score.exact_match for score in line]
        size = 12 if marker == "*" else 6
        axes.plot(x, y, marker=marker, color=color, markersize=size, label=label)
        for score, at_x, at_y in zip(line, x, y, strict=True):
            if score.setting.value is not None:
                # Two lines that may run close to each other: one labelled above, one below.
                offset, side = ((-7, 2), "right") if number == 0 else ((6, -11), "left")
                text = f"{score.setting.value:g}"
                axes.annotate(
                    text,
                    (at_x, at_y),
                    xytext=offset,
                    textcoords="offset points",
                    ha=side,
                    fontsize=8,
                    color=color,
                )


def _draw_tasks(axes: "Axes", scores: Sequence[Score]) -> None:
    axes.set_title("each task, by threshold")
    for task in dict.fromkeys(score.task for score in scores):
        line = [s for s in scores if s.task == task and s.setting.kind == "threshold"]
        if line:
            x = [score.forwards_per_token for score in line]
            y = [100 * score.exact_match for score in line]
            axes.plot(x, y, marker="o", markersize=4, label=task)


def check_folders(files: Mapping[str, Path | None]) -> None:
    """A result that cannot be written is noticed before an hour of measuring."""
    for flag, path in files.items():
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ConfigError(f"{flag}: {path} must be a file in a folder that exists")


def write_result(
    result: dict[str, Any], scores: Sequence[Score], out: Path | None, png: Path | None
) -> None:
    """JSON to ``out`` and a picture to ``png``, where they are wanted."""
    if out is not None:
        try:
            out.write_text(json.dumps(result, ensure_ascii=False, indent=1) + "\n", "utf-8")
        except OSError as error:
            raise ConfigError(f"out: cannot write {out}: {error}") from error
    if png is not None:
        title = f"Quality against forwards per token ({result['prompts']} held-out prompts)"
        draw(scores, png, title)
