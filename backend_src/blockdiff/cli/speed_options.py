"""Options of ``blockdiff plan --speed`` and which of the command's flags go together.

Needs no torch, as the command without --speed does not.
"""

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from blockdiff.errors import ConfigError
from blockdiff.planning.speed.devices import DEVICES

Speed = Annotated[
    bool, typer.Option("--speed", help="Say how fast it could be at most, instead of its memory.")
]
Gpu = Annotated[str, typer.Option(help=f"With --speed: {', '.join(DEVICES)}.")]
Bandwidth = Annotated[
    str | None,
    typer.Option(help="With --speed and --flops, instead of --gpu: in GB/s, TB/s or PB/s."),
]
Flops = Annotated[
    str | None, typer.Option(help="Goes with --bandwidth: in GFLOP/s, TFLOP/s or PFLOP/s.")
]
Context = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="With --speed: committed tokens of a request. "
        "[default: 2048, or all that the model allows]",
    ),
]
Batches = Annotated[str, typer.Option(help="With --speed: requests at once, e.g. 1,4,16.")]
Coreset = Annotated[
    int | None, typer.Option(min=1, help="With --speed: experts that a block draws from.")
]
Diversity = Annotated[
    float,
    typer.Option(min=0.01, max=1, help="With --speed: share of a block's rows that draw anew."),
]
StateDtype = Annotated[str, typer.Option(help="With --speed: of recurrent states, fp32 or bf16.")]
Png = Annotated[
    Path | None, typer.Option(help="With --speed: draw tokens per second, too, into this .png.")
]
OWN_FLAGS = frozenset(
    ("gpu", "bandwidth", "flops", "context", "batches")
    + ("coreset", "diversity", "state_dtype", "png")
)
OTHER_FLAGS = frozenset(
    ("device_memory", "tensor_parallel", "max_batch_size", "max_context", "headroom", "device")
)


def check_png(path: Path) -> None:
    """Raise ConfigError for a picture that could not be written at the end."""
    if path.suffix != ".png":
        raise ConfigError(f"--png {path}: must end in .png")
    if path.is_dir() or not path.parent.is_dir():
        raise ConfigError(f"--png {path}: must be a file in a folder that exists")


def check_flags(given: Collection[str], is_speed: bool) -> None:
    """Refuse flags of the other kind of plan; ConfigError names one."""
    wrong = sorted(set(given) & (OTHER_FLAGS if is_speed else OWN_FLAGS))
    if wrong:
        flag = wrong[0].replace("_", "-")
        where = "not with --speed" if is_speed else "only with --speed"
        raise ConfigError(f"--{flag}: {where}; leave it out")
    if "gpu" in given and ("bandwidth" in given or "flops" in given):
        raise ConfigError("--gpu: not with --bandwidth and --flops, which are instead of it")
    if not is_speed and "device_memory" not in given:
        raise ConfigError("--device-memory: missing; give the memory of one device, e.g. 80GiB")
