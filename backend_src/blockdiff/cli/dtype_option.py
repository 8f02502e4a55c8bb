"""The flag that says what a model is computed in. Knows spellings; loading knows what is allowed.

Needs no torch.
"""

from typing import Annotated

import typer

_FULL = {"bf16": "bfloat16", "fp32": "float32"}
# weights that multiply int8 activations are kept as int8
_SHORT = {"w8a8": "int8", **{full: short for short, full in _FULL.items()}}


def full_dtype(name: str | None) -> str | None:
    """bf16 and fp32 in full, as loading has them; anything else as it is."""
    return _FULL.get(name, name) if name is not None else None


def short_dtype(name: str) -> str:
    """As plans, which know weights alone, have it: bfloat16 and float32 in short, w8a8 as int8."""
    return _SHORT.get(name, name)


_NAMES = "bfloat16 (bf16), int8, int4, fp8 or w8a8 (int8 activations too)."
ComputeDtype = Annotated[
    str, typer.Option(help=f"float32 (fp32), {_NAMES}", callback=full_dtype, metavar="DTYPE")
]
ServedDtype = Annotated[
    str | None,
    typer.Option(help=f"float32 (fp32, default), {_NAMES}", callback=full_dtype, metavar="DTYPE"),
]
