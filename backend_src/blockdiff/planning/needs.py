"""Bytes that each part of serving needs on one device: formulas, no decisions.

Written after the engine's own layout (``cache``, ``models.layers``, ``engine.forward``): where the
code there changes, these change. Knows nothing of files.
"""

import math
from dataclasses import dataclass

from blockdiff.config import FULL, LINEAR, HybridConfig
from blockdiff.planning.model import PlannedModel
from blockdiff.planning.units import GIB

# Bits per weight, scales included: int8 and fp8 have one 16-bit scale per row of at least 512,
# int4 one per group of 128.
WEIGHT_BITS = {"fp32": 32.0, "bf16": 16.0, "int8": 8 + 16 / 512, "fp8": 8 + 16 / 512, "int4": 4.125}
# Routers, norms, embeddings and what is small stay in high precision.
QUANTISED_PARTS = frozenset(
    ("experts", "shared expert", "attention", "gated delta", "dense feed-forward")
)
REPLICATED_PARTS = frozenset(("norms", "router", "preview operator", "other"))
GREEDY_TILE = 1 << 24
SAMPLED_TILE = 1 << 22
DELTA_CHUNK = 64
STATE_BYTES = 4
# Driver context, libraries and workspaces; with several devices also communication buffers.
OVERHEAD = {"cuda": GIB, "cpu": int(0.4 * GIB)}
COMMUNICATION = GIB // 2


@dataclass(frozen=True)
class Load:
    """What runs at the same time."""

    slots: int
    context: int
    block_length: int
    prefill_rows: int

    @property
    def rows(self) -> int:
        """Rows of the largest round: prompts, and in every slot a commit and a preview."""
        return self.prefill_rows + 2 * self.slots * self.block_length


def element_bytes(dtype: str) -> int:
    """Bytes of an activation or cache element: quantised weights compute in bfloat16."""
    return 4 if dtype == "fp32" else 2


def can_split(config: HybridConfig, ways: int) -> bool:
    """Whether heads and experts can be shared out evenly over ``ways`` devices."""
    split = (
        config.num_attention_heads,
        config.linear_num_key_heads,
        config.moe_intermediate_size,
    )
    return ways >= 1 and all(count % ways == 0 for count in split)


def weight_parts(model: PlannedModel, dtype: str) -> dict[str, int]:
    """Bytes by part on all devices together, all experts resident."""
    high = 8 * element_bytes(dtype)
    parts = {}
    for name, count in model.parts.items():
        bits = WEIGHT_BITS[dtype] if name in QUANTISED_PARTS else high
        parts[name] = math.ceil(_loaded(model.config, name, count) * bits / 8)
    return parts


def weight_bytes(model: PlannedModel, dtype: str, ways: int) -> int:
    """Bytes on one device; small parts are on every one."""
    return sum(
        size if name in REPLICATED_PARTS else math.ceil(size / ways)
        for name, size in weight_parts(model, dtype).items()
    )


def _loaded(config: HybridConfig, part: str, count: int) -> int:
    """Parameters in memory: a shared expert is padded to a multiple of a routed one's width."""
    if part != "shared expert":
        return count
    width, unit = config.shared_expert_intermediate_size, config.moe_intermediate_size
    return count // width * (math.ceil(width / unit) * unit)


def kv_bytes_per_token(config: HybridConfig, dtype: str, ways: int) -> int:
    """Keys and values of one token in all softmax layers; few heads are on several devices."""
    heads = math.ceil(config.num_key_value_heads / ways)
    layers = config.layer_types.count(FULL)
    return 2 * layers * heads * config.head_dim * element_bytes(dtype)


def state_bytes(config: HybridConfig, dtype: str, ways: int) -> int:
    """Recurrent states and convolution tails of one request."""
    tail = (config.linear_conv_kernel_dim - 1) * config.conv_channels * element_bytes(dtype)
    layers = config.layer_types.count(LINEAR)
    return layers * (_layer_state_bytes(config) + tail) // ways


def _layer_state_bytes(config: HybridConfig) -> int:
    head = config.linear_key_head_dim * config.linear_value_head_dim
    return config.linear_num_value_heads * head * STATE_BYTES


def activation_bytes(config: HybridConfig, dtype: str, ways: int, load: Load) -> int:
    """The residual stream and the largest of a layer's three stages."""
    stream = 4 * load.rows * config.hidden_size * element_bytes(dtype)
    stages = (
        _delta_stage(config, dtype, load) // ways,
        _attention_stage(config, dtype, load) // ways,
        _expert_stage(config, dtype, load),
    )
    return stream + max(stages)


def _delta_stage(config: HybridConfig, dtype: str, load: Load) -> int:
    """Projections and their padded copy; fp32 chunks of the scan; each slot's state, twice."""
    heads, keys = config.linear_num_value_heads, config.linear_key_head_dim
    values = config.linear_value_head_dim
    projected = config.conv_channels + heads * (values + 2)
    # inputs, their chunks, right-hand sides, solutions, scaled queries and keys, outputs
    per_head = 2 * (2 * keys + values) + 2 * (keys + values) + 2 * keys + values + 3 * DELTA_CHUNK
    per_row = 2 * projected * element_bytes(dtype) + heads * per_head * 4
    return load.rows * per_row + 2 * load.slots * _layer_state_bytes(config)


def _attention_stage(config: HybridConfig, dtype: str, load: Load) -> int:
    """Projections, padded and mixed; all slots' keys and values gathered, then joined; masks."""
    size = element_bytes(dtype)
    heads = 2 * (config.num_attention_heads + config.num_key_value_heads)
    cached = 2 * config.num_key_value_heads * config.head_dim * size * load.slots * load.context
    # every group keeps its mask for the round; attention turns one at a time into a bias
    largest_group = max(load.slots * load.block_length, load.prefill_rows)
    masks = (load.rows + largest_group * size) * load.context
    return 3 * load.rows * heads * config.head_dim * size + 2 * cached + masks


def _expert_stage(config: HybridConfig, dtype: str, load: Load) -> int:
    """Rows by expert: gathered, computed, scaled; and their inner activations."""
    width = config.moe_intermediate_size
    shared = math.ceil(config.shared_expert_intermediate_size / width)
    copies = config.num_experts_per_tok + shared
    per_copy = 3 * config.hidden_size + 3 * width
    return load.rows * copies * per_copy * element_bytes(dtype)


def sampling_bytes(config: HybridConfig, dtype: str, load: Load) -> int:
    """A tile of logits with its copies; with noise a smaller tile with int64 copies."""
    rows = load.slots * load.block_length
    greedy = min(rows, max(GREEDY_TILE // config.vocab_size, 1))
    sampled = min(rows, max(SAMPLED_TILE // config.vocab_size, 1))
    greedy_bytes = greedy * config.vocab_size * (element_bytes(dtype) + 2 * 4)
    return max(greedy_bytes, sampled * config.vocab_size * (2 * 4 + 4 * 8))


def overhead_bytes(device: str, ways: int) -> int:
    """What the runtime takes before anything is loaded."""
    return OVERHEAD[device] + (COMMUNICATION if ways > 1 else 0)
