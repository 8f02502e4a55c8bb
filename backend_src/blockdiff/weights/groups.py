"""Which part of a model a tensor belongs to, by its name. Knows no shapes and no families.

The order of the rules matters: the first that fits decides.
"""

import re

SCALES = "quantisation scales"
_RULES = (
    ("not used for text", r"^(model\.)?(mtp|visual|vision_tower|audio_tower|embed_vision)\."),
    ("not used for text", r"^(model\.)?encoder\.(vision_tower|embed_vision)\."),
    ("preview operator", r"(conv_right_weight|bd_softmax_\w+)$"),
    (
        SCALES,
        r"((?<!per_expert)_scale|_scale_inv|_zero_point|scales|qzeros|g_idx|weight_shape)$",
    ),
    ("self-conditioning", r"\.self_conditioning\."),
    ("experts", r"\.experts\."),
    ("shared expert", r"\.shared_experts?\."),
    ("router", r"(mlp\.gate\.|shared_expert_gate|router)"),
    ("embedding", r"(embed_tokens|word_embeddings)\."),
    ("output head", r"lm_head\."),
    ("norms", r"norm(_?\d+)?\.weight$"),
    ("gated delta", r"linear_attn\."),
    ("attention", r"(self_attn|attention)\."),
    ("dense feed-forward", r"\.mlp\."),
)
OTHER = "other"


def group_of(name: str) -> str:
    """The part that the tensor ``name`` belongs to."""
    return next((group for group, rule in _RULES if re.search(rule, name)), OTHER)
