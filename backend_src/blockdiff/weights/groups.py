"""Which part of a model a tensor belongs to, by its name. Knows no shapes and no families.

The order of the rules matters: the first that fits decides.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from blockdiff.weights.headers import TensorHeader

_RULES = (
    ("not used for text", r"^(model\.)?(mtp|visual|vision_tower|audio_tower|embed_vision)\."),
    ("not used for text", r"^(model\.)?encoder\.(vision_tower|embed_vision)\."),
    ("preview operator", r"(conv_right_weight|bd_softmax_\w+)$"),
    (
        "quantisation scales",
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


@dataclass(frozen=True)
class Group:
    """Sums over the tensors of one part."""

    name: str
    tensors: int
    parameters: int
    size: int  # bytes
    dtypes: tuple[str, ...]


def group_of(name: str) -> str:
    """The part that the tensor ``name`` belongs to."""
    return next((group for group, rule in _RULES if re.search(rule, name)), OTHER)


def sum_groups(tensors: Iterable[TensorHeader]) -> list[Group]:
    """The parts that are there, the largest first."""
    members: dict[str, list[TensorHeader]] = {}
    for tensor in tensors:
        members.setdefault(group_of(tensor.name), []).append(tensor)
    groups = [
        Group(
            name,
            len(own),
            sum(tensor.elements for tensor in own),
            sum(tensor.size for tensor in own),
            tuple(sorted({tensor.dtype for tensor in own})),
        )
        for name, own in members.items()
    ]
    return sorted(groups, key=lambda group: -group.size)
