"""Which class serves which family. Knows nothing of files."""

from blockdiff.config import ModelConfig
from blockdiff.models.clover_moe import CloverMoeModel
from blockdiff.models.hybrid import HybridModel
from blockdiff.models.weights import Fetch

FAMILIES: dict[str, type[HybridModel]] = {
    "clover_moe": CloverMoeModel,
    "qwen3_5_moe": HybridModel,
}


def build_model(config: ModelConfig, fetch: Fetch, has_fused_experts: bool) -> HybridModel:
    """Assemble the model of ``config.model_type``; ``fetch`` gives each tensor once, by name."""
    return FAMILIES[config.model_type](config, fetch, has_fused_experts)
