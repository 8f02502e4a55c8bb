"""A picture of ``blockdiff plan --speed``: tokens per second by batch. Knows no formulas."""

from collections.abc import Sequence
from pathlib import Path

from blockdiff.errors import ConfigError
from blockdiff.planning.speed.forecast import Forecast, Question

_LINES = (1, 2, 4, 8)


def draw(path: Path, asked: Question, dtype: str, found: Sequence[Forecast]) -> None:
    """Write a PNG; ConfigError without matplotlib or where the file cannot be written."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("--png: needs matplotlib; pip install 'blockdiff[eval]'") from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    batches = [one.batch for one in found]
    for number in filter(asked.tokens_per_forward.__contains__, _LINES):
        speeds = [one.tokens_per_second(number) for one in found]
        label = f"{number} token{'s' if number > 1 else ''} per forward"
        axes.plot(batches, speeds, marker="o", label=label)
    alone = [one.autoregressive_tokens_per_second for one in found]
    axes.plot(batches, alone, color="black", linestyle="--", label="one token at a time")
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_yscale("log")
    axes.set_xlabel("requests at once")
    axes.set_ylabel("tokens per second, ceiling")
    lengths = f"blocks of {asked.block_length}, context {asked.context:,}"
    title = f"{asked.shape.family} in {dtype} {asked.rates.place}: computed, not measured"
    axes.set_title(f"{title}\n{lengths}", fontsize="medium")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--png {path}: cannot be written ({error})") from None
