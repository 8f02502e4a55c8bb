"""Bytes that stay taken while serving, on one device: weights, caches, the runtime.

Written after the engine's own layout (``cache``, ``models``): where the code there changes, these
change. A shape is that of one device (``split.share``). Knows nothing of files or of rounds.
"""

import math

from blockdiff.planning.dtypes import QUANTISED_DTYPES, STATE_BYTES, WEIGHT_BITS, element_bytes
from blockdiff.planning.model import PlannedModel
from blockdiff.planning.shape import AttentionShape, ModelShape
from blockdiff.planning.split import REPLICATED_PARTS, share
from blockdiff.planning.units import GIB

# Routers, norms, embeddings and what is small stay in high precision.
QUANTISED_PARTS = frozenset(
    ("experts", "shared expert", "attention", "gated delta", "dense feed-forward")
)
# Driver context, libraries and workspaces; with several devices also communication buffers.
OVERHEAD = {"cuda": GIB, "cpu": int(0.4 * GIB)}
COMMUNICATION = GIB // 2


def weight_parts(model: PlannedModel, dtype: str, ways: int = 1) -> dict[str, int]:
    """Bytes by part on one of ``ways`` devices, all experts resident."""
    found = {}
    for name, count in model.parts.items():
        is_quantised = name in QUANTISED_PARTS and dtype in QUANTISED_DTYPES
        own = _held(name, count, ways)
        if name == "shared expert" and not is_quantised:
            own = _padded(model.shape, own, ways)
        found[name] = math.ceil(own * _bits(model.shape, name, dtype) / 8)
    return found


def weight_bytes(model: PlannedModel, dtype: str, ways: int) -> int:
    """Bytes on one of ``ways`` devices; small parts are on every one."""
    return sum(weight_parts(model, dtype, ways).values())


def _bits(shape: ModelShape, part: str, dtype: str) -> float:
    if part in shape.float32_parts:
        return WEIGHT_BITS["fp32"]
    return WEIGHT_BITS[dtype] if part in QUANTISED_PARTS else 8.0 * element_bytes(dtype)


def _held(part: str, count: int, ways: int) -> int:
    """Parameters of a part on one device."""
    return count if part in REPLICATED_PARTS else math.ceil(count / ways)


def _padded(shape: ModelShape, count: int, ways: int) -> int:
    """A device's part of the shared expert, filled up to a multiple of a routed one's width."""
    own = share(shape, ways).experts
    if own is None or not own.shared_width:
        return count
    return count // own.shared_width * own.shared_copies * own.width


def kv_bytes(shape: ModelShape, dtype: str, context: int) -> int:
    """Keys and values of one request."""
    return sum(
        _layer_kv_bytes(kind, dtype) * kind.layers * kind.kept_positions(context)
        for kind in shape.attention
    )


def kv_bytes_per_token(shape: ModelShape, dtype: str) -> int:
    """What one more token of context adds, beyond every sliding window."""
    return sum(
        _layer_kv_bytes(kind, dtype) * kind.layers for kind in shape.attention if kind.kept is None
    )


def _layer_kv_bytes(kind: AttentionShape, dtype: str) -> int:
    return 2 * kind.key_width * element_bytes(dtype)


def state_bytes(shape: ModelShape, dtype: str) -> int:
    """One request's recurrent states and convolution tails, and the signals of its canvas."""
    signals = shape.signal_elements * element_bytes(dtype)
    own = shape.delta
    if own is None:
        return signals
    tail = (own.kernel - 1) * own.channels * element_bytes(dtype)
    return signals + own.layers * (own.state_elements * STATE_BYTES + tail)


def overhead_bytes(device: str, ways: int) -> int:
    """What the runtime takes before anything is loaded."""
    return OVERHEAD[device] + (COMMUNICATION if ways > 1 else 0)
