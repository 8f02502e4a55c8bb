"""Expert statistics of a run as a file: all counts as JSON, or a picture of them as PNG.

Knows counts only; nothing of engines or models.
"""

import json
from pathlib import Path

from blockdiff.engine.statistics import ExpertCounts
from blockdiff.errors import ConfigError

FLAG = "expert-statistics"
SUFFIXES = (".json", ".png")


def check_file(path: Path) -> None:
    """Raise ConfigError for a file that could not be written at the end."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{FLAG}: {path} must end in {' or '.join(SUFFIXES)}")
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"{FLAG}: {path} must be a file in a folder that exists")


def write_statistics(counts: ExpertCounts, path: Path) -> None:
    """``counts`` as what the file's name ends in."""
    try:
        if path.suffix == ".png":
            draw(counts, path)
        else:
            path.write_text(json.dumps(as_json(counts)) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"{FLAG}: cannot write {path}: {error}") from error


def as_json(counts: ExpertCounts) -> dict[str, object]:
    """All counts, and per layer what the server's metrics show."""
    lines = zip(counts.layers, counts.hits, counts.imbalance, counts.active, strict=True)
    return {
        "rounds": counts.rounds,
        "rows": counts.rows,
        "experts": counts.hits.shape[1],
        "layers": [
            {
                "layer": layer,
                "imbalance": round(float(imbalance), 4),
                "active": round(float(active), 4),
                "hits": hits.tolist(),
            }
            for layer, hits, imbalance, active in lines
        ],
    }


def draw(counts: ExpertCounts, path: Path) -> None:
    """Layers by experts, each cell the hits over the layer's mean."""
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(f"{FLAG}: .png needs matplotlib; install blockdiff[eval]") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    layers, experts = counts.hits.shape
    share = counts.hits / counts.hits.mean(axis=1, keepdims=True).clip(min=1e-9)
    size = (min(4 + 0.1 * experts, 14), min(2 + 0.22 * layers, 12))
    figure, axes = pyplot.subplots(figsize=size)
    image = axes.imshow(share, aspect="auto", cmap="viridis", vmin=0, interpolation="nearest")
    figure.colorbar(image, label="hits / mean of the layer")
    step = -(-layers // 16)
    axes.set_yticks(range(0, layers, step), [str(n) for n in counts.layers[::step]])
    axes.set_xlabel("expert")
    axes.set_ylabel("layer")
    axes.set_title(f"Experts chosen by {counts.rows} rows", fontsize=10)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)
