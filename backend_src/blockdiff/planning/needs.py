"""Bytes that stay taken while serving, on one device: weights, caches, the runtime.

Written after the engine's own layout (``cache``, ``models``): where the code there changes, these
change. A shape is that of one device (``split.share``). Knows nothing of files or of rounds.
"""

import math

from blockdiff.pages import EMPTY_PAGES, SNAPSHOTS_PER_SLOT
from blockdiff.planning.dtypes import (
    QUANTISED_DTYPES,
    SCALE_BITS,
    STATE_BYTES,
    VALUE_BITS,
    element_bytes,
)
from blockdiff.planning.model import PlannedModel
from blockdiff.planning.quantised import NONE, Quantised, count_projections, loading_unit
from blockdiff.planning.shape import AttentionShape, ModelShape
from blockdiff.planning.split import REPLICATED_PARTS, share
from blockdiff.planning.units import GIB

# Driver context, libraries and workspaces; with several devices also communication buffers.
OVERHEAD = {"cuda": GIB, "cpu": int(0.4 * GIB)}
COMMUNICATION = GIB // 2


def weight_parts(model: PlannedModel, dtype: str, ways: int = 1) -> dict[str, int]:
    """Bytes by part on one of ``ways`` devices, all experts resident."""
    quantised = _quantised(model, dtype)
    has_listed_experts = any(quantised.get(name) for name in ("experts", "shared expert"))
    found = {}
    for name, count in model.parts.items():
        weights, scales = quantised.get(name, NONE)
        plain = _held(name, count - weights, ways)
        # experts that are listed one by one need no equal widths
        if name == "shared expert" and not has_listed_experts:
            plain = _padded(model.shape, plain, ways)
        bits = plain * _plain_bits(model.shape, name, dtype)
        bits += _held(name, weights, ways) * VALUE_BITS.get(model.stored_kind or dtype, 0)
        bits += _held(name, scales, ways) * SCALE_BITS
        found[name] = math.ceil(bits / 8)
    return found


def weight_bytes(model: PlannedModel, dtype: str, ways: int) -> int:
    """Bytes on one of ``ways`` devices; small parts are on every one."""
    return sum(weight_parts(model, dtype, ways).values())


def _quantised(model: PlannedModel, dtype: str) -> dict[str, Quantised]:
    """By part, what is quantised: as it is stored, or else as loading in ``dtype`` makes it."""
    if model.stored_kind is not None:
        return model.stored
    if dtype not in QUANTISED_DTYPES:
        return {}
    return count_projections(model.shape, loading_unit(dtype))


def _plain_bits(shape: ModelShape, part: str, dtype: str) -> int:
    return 32 if part in shape.float32_parts else 8 * element_bytes(dtype)


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
        _layer_kv_bytes(kind, dtype) * kind.layers * shape.kept_positions(kind, context)
        for kind in shape.attention
    )


def empty_page_bytes(shape: ModelShape, dtype: str) -> int:
    """Pages that hold nothing and are there for all slots."""
    return EMPTY_PAGES * shape.page_length * kv_bytes_per_token(shape, dtype)


def kv_bytes_per_token(shape: ModelShape, dtype: str) -> int:
    """What one more token of context adds, beyond every sliding window."""
    return sum(
        _layer_kv_bytes(kind, dtype) * kind.layers for kind in shape.attention if kind.kept is None
    )


def _layer_kv_bytes(kind: AttentionShape, dtype: str) -> int:
    return 2 * kind.key_width * element_bytes(dtype)


def state_bytes(shape: ModelShape, dtype: str) -> int:
    """One request's recurrent states and convolution tails, and the signals of its canvas."""
    return _delta_bytes(shape, dtype) + shape.signal_elements * element_bytes(dtype)


def kept_state_bytes(shape: ModelShape, dtype: str, context: int) -> int:
    """What is kept by default, per slot, of the states of prefixes: states, tails and windows."""
    windows = sum(
        _layer_kv_bytes(kind, dtype) * kind.layers * shape.kept_positions(kind, context)
        for kind in shape.attention
        if kind.kept is not None
    )
    return SNAPSHOTS_PER_SLOT * (_delta_bytes(shape, dtype) + windows)


def _delta_bytes(shape: ModelShape, dtype: str) -> int:
    own = shape.delta
    if own is None:
        return 0
    tail = (own.kernel - 1) * own.channels * element_bytes(dtype)
    return own.layers * (own.state_elements * STATE_BYTES + tail)


def overhead_bytes(device: str, ways: int) -> int:
    """What the runtime takes before anything is loaded."""
    return OVERHEAD[device] + (COMMUNICATION if ways > 1 else 0)
