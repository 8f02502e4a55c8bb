"""Denoising of canvases that start as random tokens: temperatures, acceptance and when to stop.

Nothing is masked: every step draws all positions, keeps those drawn with little entropy and gives
the others fresh random tokens; what a canvas ends as are the most probable tokens of its last step.
One line per canvas, on the host. Knows nothing of draws, requests or caches.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

ENTROPY_BOUND = "entropy_bound"

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


def step_temperatures(step: Ints, steps: Ints, t_min: Floats, t_max: Floats) -> Floats:
    """Temperatures [G] of step number ``step`` (from 0) of ``steps``: from t_max towards t_min.

    With n = steps - step left: t_min + (t_max - t_min) * n / steps.
    """
    left = ((steps - step) / steps).astype(np.float32)
    return t_min + (t_max - t_min) * left


def accept_below(entropy: Floats, bound: Floats, is_given: Flags) -> Flags:
    """Accept the positions of lowest entropy while those before them sum to at most ``bound``.

    entropy [G, B] in nats, bound [G]; is_given [G, B]: positions whose tokens are known, which take
    no part. Returns [G, B]; the lowest is always accepted, equal ones are taken from the left.
    """
    order = np.argsort(np.where(is_given, np.inf, entropy), axis=1, kind="stable")
    lowest = np.take_along_axis(np.where(is_given, np.float32(0), entropy), order, axis=1)
    before = np.cumsum(lowest, axis=1, dtype=np.float32) - lowest
    accepted = np.zeros(entropy.shape, np.bool_)
    np.put_along_axis(accepted, order, before <= bound[:, None], axis=1)
    return accepted & ~is_given


class Rules(NamedTuple):
    """When canvases stop, all [G]."""

    steps: Ints
    """Most steps of a canvas."""
    stability: Ints
    """Steps before this one that must have had the same most probable tokens; 0: none."""
    confidence: Floats
    """The mean entropy must lie below this, in nats."""


class Progress(NamedTuple):
    """How far canvases are. [G, B] and [G]."""

    best: Ints
    """Most probable tokens of the last step."""
    repeats: Ints
    """Steps in a row before the last one that had the same."""


def advance(last: Progress, step: Ints, best: Ints) -> Progress:
    """Progress after step number ``step`` [G] (from 0), whose most probable tokens are ``best``."""
    is_same = (best == last.best).all(axis=1) & (step > 0)
    return Progress(best, np.where(is_same, last.repeats + 1, 0))


def find_finished(
    progress: Progress, step: Ints, entropy: Floats, rules: Rules, is_given: Flags
) -> Flags:
    """Canvases [G] that end with this step: stable and confident, out of steps, or all given.

    entropy [G, B] in nats; is_given [G, B]: positions that its mean leaves out.
    """
    counts = (~is_given).sum(axis=1)
    total = np.where(is_given, np.float32(0), entropy).sum(axis=1, dtype=np.float32)
    mean = (total / np.maximum(counts, 1)).astype(np.float32)
    is_stable = progress.repeats >= rules.stability
    is_done = (is_stable & (mean < rules.confidence)) | (step + 1 >= rules.steps)
    finished: Flags = is_done | (counts == 0)
    return finished
