"""Ranges of request fields. Knows nothing of models or of what a field does."""

import math

from blockdiff.errors import RequestError

MAX_ENTROPY_BOUND = 1e6


def check_integer(field: str, value: int, low: int, high: int) -> None:
    """Raise RequestError unless ``value`` is in [low, high]."""
    if not low <= value <= high:
        raise RequestError(f"{field}: {value} is out of range; allowed are {low} to {high}")


def check_number(field: str, value: float, low: float, high: float) -> None:
    """Raise RequestError unless ``value`` is finite and in [low, high]."""
    if not (math.isfinite(value) and low <= value <= high):
        raise RequestError(f"{field}: {value} is out of range; allowed are {low} to {high}")
