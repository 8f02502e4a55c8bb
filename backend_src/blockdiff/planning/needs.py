"""Bytes that stay taken while serving, on one device: weights, caches, the runtime.

Written after the engine's own layout (``cache``, ``models``): where the code there changes, these
change. Knows nothing of files or of rounds.
"""

import math

from blockdiff.planning.dtypes import STATE_BYTES, WEIGHT_BITS, element_bytes
from blockdiff.planning.model import PlannedModel
from blockdiff.planning.shape import AttentionShape, ModelShape
from blockdiff.planning.units import GIB

# Routers, norms, embeddings and what is small stay in high precision.
QUANTISED_PARTS = frozenset(
    ("experts", "shared expert", "attention", "gated delta", "dense feed-forward")
)
REPLICATED_PARTS = frozenset(("norms", "router", "preview operator", "other"))
# Driver context, libraries and workspaces; with several devices also communication buffers.
OVERHEAD = {"cuda": GIB, "cpu": int(0.4 * GIB)}
COMMUNICATION = GIB // 2


def split_counts(shape: ModelShape) -> dict[str, int]:
    """What is shared out over devices, by name: each count must be a multiple of their number."""
    counts = {"attention heads": math.gcd(*(kind.heads for kind in shape.attention))}
    if shape.delta is not None:
        counts["linear key heads"] = shape.delta.key_heads
    if shape.experts is not None:
        counts["expert width"] = shape.experts.width
    if shape.dense is not None:
        counts["feed-forward width"] = shape.dense.width
    return counts


def can_split(shape: ModelShape, ways: int) -> bool:
    """Whether heads and experts can be shared out evenly over ``ways`` devices."""
    return ways >= 1 and all(count % ways == 0 for count in split_counts(shape).values())


def weight_parts(model: PlannedModel, dtype: str) -> dict[str, int]:
    """Bytes by part on all devices together, all experts resident."""
    return {
        name: math.ceil(_loaded(model.shape, name, count) * _bits(model.shape, name, dtype) / 8)
        for name, count in model.parts.items()
    }


def weight_bytes(model: PlannedModel, dtype: str, ways: int) -> int:
    """Bytes on one device; small parts are on every one."""
    return sum(
        size if name in REPLICATED_PARTS else math.ceil(size / ways)
        for name, size in weight_parts(model, dtype).items()
    )


def _bits(shape: ModelShape, part: str, dtype: str) -> float:
    if part in shape.float32_parts:
        return WEIGHT_BITS["fp32"]
    return WEIGHT_BITS[dtype] if part in QUANTISED_PARTS else 8.0 * element_bytes(dtype)


def _loaded(shape: ModelShape, part: str, count: int) -> int:
    """Parameters in memory: a shared expert is padded to a multiple of a routed one's width."""
    own = shape.experts
    if part != "shared expert" or own is None:
        return count
    return count // own.shared_width * own.shared_copies * own.width


def kv_bytes(shape: ModelShape, dtype: str, ways: int, context: int) -> int:
    """Keys and values of one request; heads fewer than devices are on several of them."""
    return sum(
        _layer_kv_bytes(kind, dtype, ways) * kind.layers * kind.kept_positions(context)
        for kind in shape.attention
    )


def kv_bytes_per_token(shape: ModelShape, dtype: str, ways: int) -> int:
    """What one more token of context adds, beyond every sliding window."""
    return sum(
        _layer_kv_bytes(kind, dtype, ways) * kind.layers
        for kind in shape.attention
        if kind.kept is None
    )


def _layer_kv_bytes(kind: AttentionShape, dtype: str, ways: int) -> int:
    return 2 * math.ceil(kind.kv_heads / ways) * kind.head_dim * element_bytes(dtype)


def state_bytes(shape: ModelShape, dtype: str, ways: int) -> int:
    """One request's recurrent states and convolution tails, and the signals of its canvas."""
    signals = shape.signal_elements * element_bytes(dtype)
    own = shape.delta
    if own is None:
        return signals
    tail = (own.kernel - 1) * own.channels * element_bytes(dtype)
    return signals + own.layers * (own.state_elements * STATE_BYTES + tail) // ways


def overhead_bytes(device: str, ways: int) -> int:
    """What the runtime takes before anything is loaded."""
    return OVERHEAD[device] + (COMMUNICATION if ways > 1 else 0)
