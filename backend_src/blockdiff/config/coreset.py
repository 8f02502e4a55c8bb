"""The optional ``expert_coreset`` of a config: experts that the rows of one block share.

Knows its keys and their limits; knows nothing of routers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from blockdiff.config.keys import Keys

MAX_POOL = "max_pool"
TOP_P = "top_p"
_RULE_KEYS = {MAX_POOL: "capacity", TOP_P: "top_p"}


@dataclass(frozen=True)
class CoresetConfig:
    """How a block's pool of experts is chosen, and in which phases."""

    rule: str  # MAX_POOL or TOP_P
    capacity: int = 0  # of MAX_POOL: experts in the pool
    top_p: float = 1.0  # of TOP_P: share of the block's router mass that the pool holds
    covers_writing: bool = False  # also prompts and commits, not previews alone


def read_coreset(
    keys: Keys, num_experts: int, top_k: int, is_anchored_at_zero: bool
) -> CoresetConfig | None:
    """``expert_coreset`` of a config, or None where it is absent, null, false or 0."""
    value = keys.get("expert_coreset")
    # 0 == False, but 0.0 and "" are mistakes
    if value is None or (type(value) in (bool, int) and value == 0):
        return None
    if not isinstance(value, Mapping):
        raise keys.error("expert_coreset", 'an object such as {"rule": "max_pool", "capacity": 48}')
    own = Keys(value, "expert_coreset.")
    rule = own.choice("rule", tuple(_RULE_KEYS), default="")
    allowed = ("rule", "phases", _RULE_KEYS[rule])
    for key in value:
        if key not in allowed:
            raise own.error(key, f"absent with rule {rule!r}; allowed keys: {list(allowed)}")
    covers_writing = own.choice("phases", ("preview", "all"), default="preview") == "all"
    if covers_writing and not is_anchored_at_zero:
        # chunks of a prompt would cut blocks where the token budget happens to end
        raise own.error("phases", "'preview' unless block_anchor is 'zero'")
    if rule == MAX_POOL:
        capacity = own.integer("capacity", low=top_k, high=num_experts)
        return CoresetConfig(rule, capacity=capacity, covers_writing=covers_writing)
    if own.get("top_p") is None:
        raise own.error("top_p", "a number above 0.0 up to 1.0")
    top_p = own.number("top_p", default=1.0, low=0.0, high=1.0)
    return CoresetConfig(rule, top_p=top_p, covers_writing=covers_writing)
