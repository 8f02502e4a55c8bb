"""Measured times beside floors: a CSV, a picture, lines for the terminal. Knows no op."""

import csv
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from blockdiff_kernels.cost import Cost

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Measured:
    """One time; ``seconds`` None: it ran and was not timed."""

    op: str
    name: str
    weights: str
    rows: int
    mode: str  # eager or graph
    seconds: float | None
    floor_seconds: float
    cost: Cost
    error: float | None  # of the check, where this was checked

    @property
    def share(self) -> float | None:
        """Of the floor's speed that is reached."""
        return None if self.seconds is None else self.floor_seconds / self.seconds


def facts(device: torch.device) -> dict[str, str]:
    """Where and with what numbers came about."""
    name = "CPU" if device.type == "cpu" else torch.cuda.get_device_name(device)
    return {"commit": _commit(), "device": name, "torch": _version("torch")} | {
        "triton": _version("triton")
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def write_csv(path: Path, found: Sequence[Measured], about: dict[str, str]) -> None:
    """One row a time, each with where it came about."""
    rows = [_row(one, about) for one in found]
    with path.open("w", newline="", encoding="utf-8") as file:
        names = list(rows[0]) if rows else list(about)
        writer = csv.DictWriter(file, fieldnames=names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _row(one: Measured, about: dict[str, str]) -> dict[str, object]:
    own = {name: value for name, value in vars(one).items() if name != "cost"}
    return {**about, **own, **one.cost._asdict(), "share": one.share}


def line(one: Measured) -> str:
    """For the terminal."""
    label = f"{one.op + '/' + one.name:34} {one.weights:5} T={one.rows:<5} {one.mode:6}"
    if one.seconds is None:
        return f"{label} ran, not timed"
    return (
        f"{label} {one.seconds * 1e6:10.1f} us  floor {one.floor_seconds * 1e6:10.1f} us"
        f"  {one.share:6.1%}"
    )


def draw(path: Path, found: Sequence[Measured], about: dict[str, str]) -> bool:
    """Bars of the share of the floor reached; False: matplotlib is not there or nothing timed."""
    timed = [one for one in found if one.share is not None]
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    if not timed:
        return False
    figure = Figure(figsize=(9, 1.5 + 0.22 * len(timed)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    labels = [f"{one.op}/{one.name} {one.weights} T={one.rows} {one.mode}" for one in timed]
    axes.barh(labels, [one.share or 0.0 for one in timed])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xlabel("floor / measured time (1: the device's full rates)")
    axes.set_title(f"{about['device']}, {about['commit']}")
    figure.savefig(path, dpi=110)
    return True
