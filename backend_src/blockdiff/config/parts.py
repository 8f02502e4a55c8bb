"""Readers of single facts that every family's config has: rope, threshold, end tokens.

Knows nothing of what a family does with them.
"""

from collections.abc import Mapping
from typing import Any

from blockdiff.config.keys import Keys

LINEAR = "linear_attention"
FULL = "full_attention"
SLIDING = "sliding_attention"
BLOCK_ANCHORS = ("prompt_end", "zero")
DEFAULT_THRESHOLD = 0.9
# how positions of images are laid out, which text does not have, and a former name
ROPE_HARMLESS = frozenset({"mrope_section", "mrope_interleaved", "type"})


def read_rope(keys: Keys, head_dim: int, share: float, base: float) -> tuple[int, float]:
    """Rotary dimensions and base, from ``rope_parameters`` or from the older top-level keys.

    ``share`` of head_dim and ``base`` are what the family uses when the config names none.
    """
    older, newer = keys.get("rope_scaling"), keys.get("rope_parameters")
    for value in (older, newer):
        if value is not None and not isinstance(value, Mapping):
            raise keys.error("rope_parameters", "an object with rope_type and rope_theta")
    if older and newer and older != newer:
        raise keys.error("rope_scaling", "absent or what rope_parameters says")
    parameters = dict(newer or older or {})
    # older files say "type"
    parameters.setdefault("rope_type", parameters.get("type"))
    rope = Keys({**keys.values, **parameters}, "rope_parameters.")
    rope.choice("rope_type", ("default",), default="default")
    factor = rope.number("partial_rotary_factor", default=share, low=0.0, high=1.0)
    theta = rope.number("rope_theta", default=base, low=1.0, high=1e12)
    keys.read |= rope.read
    unread = set(parameters) - rope.read - ROPE_HARMLESS
    keys.unread_below += [f"rope_parameters.{key}" for key in sorted(unread)]
    rotary_dim = int(head_dim * factor)
    if rotary_dim < 2 or rotary_dim % 2:
        raise rope.error(
            "partial_rotary_factor", f"a share of head_dim {head_dim} that is an even number >= 2"
        )
    return rotary_dim, theta


def read_threshold(keys: Keys, default: float = DEFAULT_THRESHOLD) -> float:
    """The acceptance threshold that requests use when they name none."""
    decoding = keys.get("decoding")
    if decoding is None:
        return default
    if not isinstance(decoding, Mapping):
        raise keys.error("decoding", 'an object such as {"threshold": 0.9}')
    own = Keys(decoding, "decoding.")
    # the algorithm of requests that name none
    own.choice("algorithm", ("low_confidence",), default="low_confidence")
    threshold = own.number("threshold", default=default, low=0.0, high=1.0)
    keys.unread_below += [f"decoding.{key}" for key in own.unread()]
    return threshold


def read_mask_token(keys: Keys, is_required: bool) -> int | None:
    """The id that stands for a masked position; None: the checkpoint has none and may do so."""
    if keys.get("mask_token_id") is None and not is_required:
        return None
    return keys.integer("mask_token_id", low=0, high=keys.integer("vocab_size") - 1)


def read_eos_tokens(keys: Keys, generation: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """generation_config.json wins over config.json, as it does for the reference loaders."""
    source = Keys(generation, "generation_config.json: ") if "eos_token_id" in generation else keys
    # a config's own ids are known too where the other file has better ones
    keys.read.add("eos_token_id")
    value = source.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if any(type(i) is not int or not 0 <= i < vocab_size for i in ids):
        raise source.error("eos_token_id", f"an id or a list of ids from 0 to {vocab_size - 1}")
    return tuple(dict.fromkeys(ids))
