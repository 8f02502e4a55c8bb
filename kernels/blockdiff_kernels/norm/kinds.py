"""How an RMS norm uses its weight. Knows nothing of tensors."""

from enum import IntEnum


class NormKind(IntEnum):
    """See the package for what each computes."""

    NO_WEIGHT = 0
    ZERO_CENTRED = 1
    SCALED = 2
    PLAIN = 3
