"""Which implementations of the kernels a process uses, checked before a model is loaded.

Knows how people ask for them and what this machine can run; needs no torch.
"""

import os
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from blockdiff.errors import ConfigError
from blockdiff_kernels import implementation
from blockdiff_kernels.implementation import (
    AUTO,
    CPU,
    OPS,
    REFERENCE,
    TRITON,
    VARIABLE,
    Choices,
    Implementation,
    current_choices,
    parse_choices,
    set_choices,
    spell_choices,
    using,
    wanted_for,
)

INTERPRET = "TRITON_INTERPRET"
PACKED = ("projection",)  # ops whose path on a CPU is a packed weight, not a file of the op


def use_kernels(text: str | None, device: str, deterministic: bool = False) -> None:
    """Choose what ``text`` says from now on; None: what is chosen, by BLOCKDIFF_KERNELS if by none.

    ConfigError, one line, for a text that makes no sense and for Triton kernels that cannot run on
    ``device`` (cpu or cuda...) or that were asked for together with ``deterministic``.
    """
    kind = device.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device is {device!r}; it must be cpu or cuda")
    source = VARIABLE if text is None else "kernels"
    choices = read_choices(source, text)
    shown = f"{source} {spell_choices(choices)}"
    if deterministic and TRITON in choices.values():
        raise ConfigError(f"{shown}: triton does not go with deterministic; leave one of them out")
    with using(spell_choices(choices)):
        uses_triton = any(wanted_for(op, kind) is TRITON for op in OPS)
    reason = why_no_triton(device) if uses_triton else None
    if reason is not None:
        raise ConfigError(f"{shown}: Triton kernels cannot run here: {reason}")
    if text is not None:
        set_choices(choices)


def read_choices(source: str, text: str | None) -> Choices:
    """As ``parse_choices``, None for those in force; ConfigError names ``source``."""
    if text is not None and not text.strip():
        raise ConfigError(f"{source}: empty; leave it out, or give {AUTO}")
    try:
        return current_choices() if text is None else parse_choices(text)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None


def why_no_triton(device: str) -> str | None:
    """What keeps Triton kernels from running on ``device`` and what to do; None where they run."""
    if find_spec("triton") is None:
        return "triton is not installed; pip install 'blockdiff[kernels]', or take reference"
    if device.startswith("cuda") or os.environ.get(INTERPRET) == "1":
        return None
    return (
        f"they need a GPU (--device cuda), or {INTERPRET}=1 in the environment "
        "(very slow, for tests); otherwise take auto, cpu or reference"
    )


def implementation_of(op: str, device: str) -> Implementation:
    """What runs on ``device`` as far as the op's files tell: one that lacks it is defined only."""
    wanted = wanted_for(op, device)
    folder = Path(implementation.__file__).parent / op
    if wanted is CPU and op in PACKED:
        return CPU
    own = {TRITON: "triton*", CPU: "cpu*"}.get(wanted)
    return wanted if own is not None and any(folder.glob(own)) else REFERENCE


def triton_version() -> str | None:
    """Of the installed package."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return None
