"""Canvases of random tokens as a step finds them. Data only."""

from typing import NamedTuple

from torch import Tensor


class Canvases(NamedTuple):
    """G canvases of B places, none of them beyond its canvas."""

    canvas: Tensor  # [G, B] int32
    fresh: Tensor  # [G, B] int32 random tokens for places that are not accepted
    is_given: Tensor  # [G, B] int32, 1: the place has its token for good
    slots: Tensor  # [G] int32 line of ``Progress``
    step: Tensor  # [G] int32 number of the step, from 0
    steps: Tensor  # [G] int32 most steps of a canvas
    stability: Tensor  # [G] int32 steps before this one that must have had the same best tokens
    bound: Tensor  # [G] float32 sum of entropies up to which places are accepted, in nats
    confidence: Tensor  # [G] float32 the mean entropy must lie below this, in nats


class Progress(NamedTuple):
    """What is kept of canvases from step to step, a line for each slot."""

    best: Tensor  # [slots, B] int32 most probable tokens of the last step
    repeats: Tensor  # [slots] int32 steps in a row before the last one that had the same


class Step(NamedTuple):
    """What a step says of the places, [G * B] each, canvas by canvas."""

    best: Tensor  # int64 most probable tokens
    drawn: Tensor  # int64
    log_probs: Tensor  # float32 of ``best``
    entropy: Tensor  # float32, in nats
