"""Bytes of numbers by the dtype that a plan is made for. Knows nothing of models."""

STATE_BYTES = 4
# Bits per weight, with scales in float32: int8 and fp8 have one for a row of at least 512, int4 one
# for a group of 128.
QUANTISED_DTYPES = frozenset(("int8", "int4", "fp8"))
WEIGHT_BITS = {
    "fp32": 32.0,
    "bf16": 16.0,
    "int8": 8 + 32 / 512,
    "fp8": 8 + 32 / 512,
    "int4": 4 + 32 / 128,
}


def element_bytes(dtype: str) -> int:
    """Bytes of an activation or cache element: quantised weights compute in bfloat16."""
    return 4 if dtype == "fp32" else 2
