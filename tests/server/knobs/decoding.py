"""Knobs of how a block is decided."""

from .base import SORT, Knob

DECODING: tuple[Knob, ...] = (
    Knob(
        "block_length",
        SORT,
        {"block_length": 4, "ignore_eos": True},
        lambda a, b: [part["num_output_tokens"] for part in b.parts] == [4] * 10,
    ),
    Knob(
        "denoise_steps",
        SORT,
        {"denoise_steps": 5, "ignore_eos": True, "block_length": 8},
        lambda a, b: [part["denoise_steps_used"] for part in b.parts] == [5] * 5,
    ),
    Knob(
        "threshold",
        {**SORT, "threshold": 0.0},
        {"threshold": 1.0},
        lambda a, b: a.joined("denoise_steps_used") < b.joined("denoise_steps_used"),
    ),
    Knob(
        "algorithm",
        SORT,
        {"algorithm": "entropy_bound"},
        lambda a, b: b.errors != [] and "algorithm" in b.errors[0],
    ),
    Knob(
        "quality",
        {**SORT, "quality": "fast"},
        {"quality": "high"},
        lambda a, b: (
            (round(a.last["threshold_used"], 2), round(b.last["threshold_used"], 2)) == (0.7, 0.98)
        ),
    ),
)
