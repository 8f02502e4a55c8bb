"""What a plan needs to know of a model: its config, and parameters by part.

The parts have the names of ``blockdiff.weights.groups``. Knows nothing of devices or of requests.
"""

from dataclasses import dataclass
from pathlib import Path

from blockdiff.config import FULL, LINEAR, HybridConfig, load_config, parse_config, read_json
from blockdiff.errors import ConfigError
from blockdiff.weights.groups import sum_groups
from blockdiff.weights.headers import INDEX, SUFFIX, read_headers

UNUSED = "not used for text"
# Names and shapes of the preview tensors of published checkpoints may differ a little from ours.
_TOLERANCE = 0.01


@dataclass(frozen=True)
class PlannedModel:
    """A model on paper."""

    config: HybridConfig
    parts: dict[str, int]  # part -> parameters
    has_headers: bool  # counted in the safetensors headers, not only derived from the config

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def active_parameters(self) -> int:
        """Parameters that one token's forward uses; the embedding is a look-up and not counted."""
        experts = self.parts.get("experts", 0)
        used = experts * self.config.num_experts_per_tok // self.config.num_experts
        return self.parameters - experts + used - self.parts.get("embedding", 0)


def read_model(path: Path) -> PlannedModel:
    """Read a checkpoint folder (weights may be absent) or a config.json; tensors are not read."""
    if path.is_file():
        config = _hybrid(parse_config(read_json(path)))
        return PlannedModel(config, config_parts(config), has_headers=False)
    config = _hybrid(load_config(path))
    expected = config_parts(config)
    if not (path / INDEX).exists() and not any(path.glob(f"*{SUFFIX}")):
        return PlannedModel(config, expected, has_headers=False)
    groups = {group.name: group.parameters for group in sum_groups(read_headers(path))}
    groups.pop(UNUSED, None)
    if config.tie_word_embeddings:
        groups.pop("output head", None)
    if not config.has_preview_tensors:
        groups.pop("preview operator", None)
    stored, wanted = sum(groups.values()), sum(expected.values())
    if abs(stored - wanted) > _TOLERANCE * wanted:
        raise ConfigError(
            f"{path}: the weights hold {stored:,} parameters, config.json asks for {wanted:,}; "
            "take config and weights of the same model"
        )
    return PlannedModel(config, groups, has_headers=True)


def _hybrid(config: object) -> HybridConfig:
    """The parts below are those of the hybrid trunk; no other family is guessed at."""
    if not isinstance(config, HybridConfig):
        family = getattr(config, "model_type", type(config).__name__)
        raise ConfigError(f"config.json: plan does not know model_type {family!r} yet")
    return config


def config_parts(config: HybridConfig) -> dict[str, int]:
    """Parameters by part, as the config alone says."""
    hidden, layers = config.hidden_size, len(config.layer_types)
    delta, full = config.layer_types.count(LINEAR), config.layer_types.count(FULL)
    channels, heads = config.conv_channels, config.linear_num_value_heads
    inner, kernel = heads * config.linear_value_head_dim, config.linear_conv_kernel_dim
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    projections = (channels + 2 * inner + 2 * heads) * hidden
    norms = (2 * layers + 1) * hidden + 2 * full * config.head_dim
    parts = {
        "embedding": config.vocab_size * hidden,
        "experts": layers * config.num_experts * 3 * config.moe_intermediate_size * hidden,
        "shared expert": layers * 3 * config.shared_expert_intermediate_size * hidden,
        "router": layers * (config.num_experts + 1) * hidden,
        "attention": full * (3 * queries + 2 * keys) * hidden,
        "gated delta": delta * (projections + channels * kernel + 2 * heads),
        "norms": norms + delta * config.linear_value_head_dim,
    }
    if not config.tie_word_embeddings:
        parts["output head"] = config.vocab_size * hidden
    if config.has_preview_tensors:
        parts["preview operator"] = delta * (channels * (kernel - 1) + 3 * heads)
    return {name: count for name, count in parts.items() if count}
