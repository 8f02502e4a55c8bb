"""Which file describes which family on paper: a config in, a ``ModelShape`` out."""

from collections.abc import Callable
from typing import Any

from blockdiff.config import AttentionConfig, DiffusionGemmaConfig, HybridConfig
from blockdiff.errors import ConfigError
from blockdiff.planning.families import attention, gemma, hybrid
from blockdiff.planning.shape import ModelShape

_FAMILIES: dict[type, Callable[[Any], ModelShape]] = {
    HybridConfig: hybrid.describe,
    AttentionConfig: attention.describe,
    DiffusionGemmaConfig: gemma.describe,
}


def describe(config: object) -> ModelShape:
    """The shape of the model that ``config`` is of; no family is guessed at."""
    found = _FAMILIES.get(type(config))
    if found is None:
        family = getattr(config, "model_type", type(config).__name__)
        raise ConfigError(f"config.json: plan does not know model_type {family!r} yet")
    return found(config)
