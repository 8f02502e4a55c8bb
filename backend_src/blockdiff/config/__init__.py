"""Model configuration: a checkpoint's ``config.json``, read and checked once, never changed.

One file per group of families. Needs no torch; knows nothing of tensors or of the engine.
"""

from blockdiff.config.attention import BLOCK_CAUSAL, AttentionConfig, RouterConfig
from blockdiff.config.coreset import MAX_POOL, CoresetConfig
from blockdiff.config.diffusion_gemma import (
    AttentionShape,
    DiffusionGemmaConfig,
    Rotary,
    UniformDefaults,
)
from blockdiff.config.families import PARSERS, AnyConfig, load_config, parse_config, unused_keys
from blockdiff.config.files import read_json
from blockdiff.config.hybrid import HybridConfig
from blockdiff.config.parts import FULL, LINEAR, SLIDING

__all__ = [
    "BLOCK_CAUSAL",
    "FULL",
    "LINEAR",
    "MAX_POOL",
    "PARSERS",
    "SLIDING",
    "AnyConfig",
    "AttentionShape",
    "AttentionConfig",
    "CoresetConfig",
    "DiffusionGemmaConfig",
    "HybridConfig",
    "Rotary",
    "UniformDefaults",
    "RouterConfig",
    "load_config",
    "parse_config",
    "read_json",
    "unused_keys",
]
