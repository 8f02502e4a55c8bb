"""Bytes of numbers by the dtype that a plan is made for. Knows nothing of models."""

STATE_BYTES = 4
# Bits per weight, scales included: int8 and fp8 have one 16-bit scale per row of at least 512,
# int4 one per group of 128.
WEIGHT_BITS = {"fp32": 32.0, "bf16": 16.0, "int8": 8 + 16 / 512, "fp8": 8 + 16 / 512, "int4": 4.125}


def element_bytes(dtype: str) -> int:
    """Bytes of an activation or cache element: quantised weights compute in bfloat16."""
    return 4 if dtype == "fp32" else 2
