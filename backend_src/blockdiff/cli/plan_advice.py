"""What a plan says in sentences: whether it fits, what would, and how to serve it.

Knows flags of ``plan`` and ``serve``; makes no sums.
"""

import shlex
from pathlib import Path

from blockdiff.cli.dtype_option import full_dtype
from blockdiff.cli.sizes import counted
from blockdiff.planning import Plan
from blockdiff.planning.dtypes import QUANTISED_DTYPES
from blockdiff.planning.units import GIB

DEFAULT_SLOTS = 8  # of plan and of serve
_SERVED_IN = "float32"  # by serve that is told nothing


def verdict(made: Plan) -> list[str]:
    """Whether it fits, what would, and what to change."""
    setup = made.setup
    lines = ["It fits." if made.fits else "It does not fit."]
    if made.fitting_slots:
        slots = counted(made.fitting_slots, "slot")
        lines.append(f"At context {setup.context:,}: up to {slots}.")
    if made.fitting_context:
        slots = counted(setup.slots, "slot")
        lines.append(f"With {slots}: context up to {made.fitting_context:,}.")
    if made.changes:
        lines.append("Any one of these makes it fit: " + "; ".join(made.changes) + ".")
    elif not made.fits:
        lines += _no_change(made)
    return lines


def _no_change(made: Plan) -> list[str]:
    """What is said when no single flag helps."""
    more = "more memory" if made.setup.device == "cpu" else "more or larger devices"
    weights, usable = made.demand.weights, made.setup.usable
    if weights > usable:
        need = f"The weights alone need {_binary(weights)}, {_binary(usable)} are usable:"
        return [f"{need} take smaller weights or {more}."]
    return [
        "No single change makes it fit: combine fewer slots, a shorter context,",
        f"smaller weights and {more}.",
    ]


def notes(made: Plan) -> list[str]:
    """What stands behind the numbers."""
    found, setup = [], made.setup
    if setup.dtype in QUANTISED_DTYPES:
        measured = "" if setup.device == "cpu" else f"{setup.dtype} is not measured on a GPU; "
        kept = "embeddings, output head, routers and norms stay in bf16"
        found.append(measured + kept)
    if setup.tensor_parallel > 1:
        found.append("several devices are a forecast: this release has not been run on them")
    return found


def serve_command(made: Plan, folder: Path) -> str | None:
    """How to serve what was planned; None where nothing fits or can be served, or needs no flag."""
    setup, model = made.setup, made.model
    dtype = "bfloat16" if model.stored_kind is not None else full_dtype(setup.dtype)
    if not made.fits or not model.has_headers or dtype == _SERVED_IN:
        return None
    words = f"blockdiff serve --model {shlex.quote(str(folder))} --dtype {dtype}"
    flags = {
        "--device cuda": setup.device == "cuda",
        f"--slots {setup.slots}": setup.slots != DEFAULT_SLOTS,
        f"--max-context {setup.context}": setup.context != model.shape.max_context,
        f"--tensor-parallel {setup.tensor_parallel}": setup.tensor_parallel > 1,
    }
    return " ".join([words, *(flag for flag, is_needed in flags.items() if is_needed)])


def _binary(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB else f"{size / 2**20:.2f} MiB"
