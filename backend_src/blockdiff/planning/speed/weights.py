"""Bytes of a weight as it is kept, its part of a scale included. Knows nothing of layers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from blockdiff.planning.dtypes import SCALE_BITS, VALUE_BITS
from blockdiff.planning.quantised import NONE, Quantised, loading_unit

_BF16 = 16
_EXPERTS = "experts"


@dataclass(frozen=True)
class Kept:
    """How one kind of weight is kept."""

    bits: int
    unit: Callable[[int], float] | None = None
    """Weights that share a scale, by the inputs of their projection; None: there are no scales."""

    def __call__(self, inputs: int) -> float:
        """Bytes of one weight of a projection with so many inputs."""
        scale = 0.0 if self.unit is None else SCALE_BITS / self.unit(inputs)
        return (self.bits + scale) / 8


PLAIN = Kept(_BF16)


@dataclass(frozen=True)
class WeightFormat:
    """Of projections and of routed experts; embeddings, routers and the head stay in bfloat16."""

    projections: Kept = PLAIN
    experts: Kept = PLAIN


def weight_format(dtype: str, stored: Mapping[str, Quantised] | None = None) -> WeightFormat:
    """As loading in ``dtype`` (bf16, int8, int4, fp8) keeps weights, or as they are stored."""
    bits = VALUE_BITS.get(dtype)
    if bits is None:
        return WeightFormat()
    if not stored:
        kept = Kept(bits, loading_unit(dtype))
        return WeightFormat(kept, kept)
    others = [own for part, own in stored.items() if part != _EXPERTS]
    rest = Quantised(sum(own.weights for own in others), sum(own.scales for own in others))
    return WeightFormat(_stored(bits, rest), _stored(bits, stored.get(_EXPERTS, NONE)))


def _stored(bits: int, own: Quantised) -> Kept:
    if not own.weights:
        return PLAIN
    return Kept(bits, lambda inputs: own.weights / max(own.scales, 1))
