"""Bytes of numbers by the dtype that a plan is made for. Knows nothing of models."""

STATE_BYTES = 4
# bits of one quantised weight; its scales come on top
VALUE_BITS = {"int8": 8, "fp8": 8, "int4": 4}
QUANTISED_DTYPES = frozenset(VALUE_BITS)
# loaded scales are float32, or bfloat16 beside a zero point: 32 bits either way
SCALE_BITS = 32


def element_bytes(dtype: str) -> int:
    """Bytes of an activation or cache element: quantised weights compute in bfloat16."""
    return 4 if dtype == "fp32" else 2
