"""What can be said on the command line of ``blockdiff serve``.

Declares options and holds them, checked; knows nothing of servers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from blockdiff.errors import ConfigError
from blockdiff.kernel_choice import OPS, TRITON, read_choices, spell_choices, using, wanted_for
from blockdiff.weights.identity import WeightsIdentity

Model = Annotated[Path, typer.Option(help="Checkpoint folder.", show_default=False)]
ModelRepository = Annotated[
    Path | None, typer.Option(help="Model repository to serve instead of the project's.")
]
Host = Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")]
HttpPort = Annotated[int, typer.Option(help="HTTP port; 0 takes a free one.")]
GrpcPort = Annotated[int, typer.Option(help="gRPC port; 0 takes a free one.")]
MetricsPort = Annotated[int, typer.Option(help="Metrics port; 0 takes a free one.")]
Slots = Annotated[
    int | None, typer.Option(min=1, max=4096, help="Requests that run at once. [default: 8]")
]
MaxQueueSize = Annotated[
    int | None, typer.Option(min=0, help="Requests that wait; more are refused. [default: 64]")
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads of the engine.")]
MaxContext = Annotated[
    int | None, typer.Option(min=1, help="Longest prompt plus answer, in tokens.")
]
ToolForm = Annotated[
    str | None,
    typer.Option(help="How the model writes tool calls. [default: by its chat template]"),
]
PrefillTokenBudget = Annotated[
    int | None,
    typer.Option(min=1, help="Prompt tokens of all newcomers in one round. [default: 512]"),
]
KvCacheSize = Annotated[
    str | None,
    typer.Option(help="Memory for keys and values, e.g. 8GiB. [default: all slots' longest]"),
]
PrefixCache = Annotated[
    bool | None,
    typer.Option(help="Keep committed tokens for requests that begin alike. [default: on]"),
]
SnapshotSize = Annotated[
    str | None,
    typer.Option(help="Memory for kept recurrent states, 512MiB, or 0. [default: 2 a slot]"),
]
SnapshotInterval = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens between two kept states of a request. [default: 512]"),
]
TruncateLastBlock = Annotated[
    bool, typer.Option("--truncate-last-block", help="End the last block where max_tokens does.")
]
Deterministic = Annotated[
    bool,
    typer.Option("--deterministic", help="A request's output has the same bits in any batch."),
]
ExpertStatisticsInterval = Annotated[
    int | None,
    typer.Option(min=0, help="Count experts in one of so many rounds, 0: never. [default: 16]"),
]
CudaGraphs = Annotated[
    bool | None,
    typer.Option(help="Capture usual rounds at start and replay them. [default: on a GPU]"),
]
Device = Annotated[str | None, typer.Option(help="cpu (default) or cuda.")]
TensorParallel = Annotated[
    int | None, typer.Option(min=1, max=64, help="Processes that share the model. [default: 1]")
]
TensorParallelTimeout = Annotated[
    float | None, typer.Option(help="Seconds until one that does not answer is dead. [default: 60]")
]
LoadAware = Annotated[
    bool, typer.Option("--load-aware", help='Quality "balanced" gives way while requests wait.')
]
LoadAwareThreshold = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="With --load-aware: lowest threshold. [default: 0.7]"),
]
LoadAwareSteps = Annotated[
    float | None,
    typer.Option(min=0.01, max=1, help="With --load-aware: least share of steps. [default: 0.5]"),
]
Verify = Annotated[
    bool | None,
    typer.Option("--verify/--no-verify", help="Check the weights against their manifest."),
]
ExitTimeoutSecs = Annotated[
    int, typer.Option(min=1, help="How long running requests may take to finish at the end.")
]
GrpcInferThreadCount = Annotated[int, typer.Option(min=2, max=128)]
Restart = Annotated[bool, typer.Option(help="Restart the server when its engine dies or hangs.")]
MaxRestarts = Annotated[int, typer.Option(min=0, help="Restarts allowed in 5 minutes.")]
HeartbeatTimeout = Annotated[
    float, typer.Option(min=1, help="Seconds without an engine round that count as a hang.")
]
StartTimeout = Annotated[float, typer.Option(min=1, help="Seconds until ready.")]
LogFile = Annotated[Path | None, typer.Option(help="Where tritonserver's log goes.")]
TritonArg = Annotated[
    list[str] | None, typer.Option(help="Further argument for tritonserver; repeatable.")
]
OutputFormat = Annotated[str, typer.Option("--format", help="text or json.")]


@dataclass(frozen=True)
class ServeOptions:
    """The command line of ``serve``, checked."""

    model: Path
    repository: Path | None = None
    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    metrics_port: int | None = 8002
    slots: int | None = None
    max_queue_size: int | None = None
    threads: int | None = None
    max_context: int | None = None
    tool_form: str | None = None
    engine: Mapping[str, object] = field(default_factory=dict)
    """Further parameters of ``block_diffusion``; None: not given."""
    device: str | None = None
    dtype: str | None = None
    tensor_parallel: int | None = None
    tensor_parallel_timeout: float | None = None
    load_aware: bool = False
    load_aware_threshold: float | None = None
    load_aware_steps: float | None = None
    exit_timeout: int = 30
    grpc_threads: int = 8
    log_file: Path | None = None
    triton_args: tuple[str, ...] = ()
    weights: WeightsIdentity | None = None  # None: the served model verifies them itself


def as_parameters(**values: bool | int | str | None) -> dict[str, object]:
    """Settings of the engine as a ``config.pbtxt`` has them; None stays: it is not given."""
    words = {True: "yes", False: "no"}
    return {name: words[v] if isinstance(v, bool) else v for name, v in values.items()}


def check_tool_form(name: str | None) -> None:
    """Raise ConfigError for a form that there is not."""
    from blockdiff.text.tool_calls import FORMS

    if name is not None and name not in FORMS:
        raise ConfigError(f"--tool-form {name}: allowed are {', '.join(FORMS)}")


def check_cuda_graphs(device: str, tensor_parallel: int | None, kernels: str | None) -> None:
    """Raise ConfigError where no rounds could be captured, before a server is started for that."""
    if device.partition(":")[0] != "cuda":
        raise ConfigError("--cuda-graphs: needs a GPU; give --device cuda, or leave it out")
    refuse_together("--cuda-graphs", True, "--tensor-parallel", (tensor_parallel or 1) > 1)
    choices = read_choices("kernels", kernels)
    with using(spell_choices(choices)):
        others = [op for op in OPS if wanted_for(op, "cuda") is not TRITON]
    if others:
        raise ConfigError(
            f"--cuda-graphs: not together with kernels {spell_choices(choices)}, not all are "
            f"Triton's ({', '.join(others)}); leave one of them out"
        )


def refuse_together(one: str, has_one: bool, other: str, has_other: bool) -> None:
    """Raise ConfigError where both flags are given, before a server is started for nothing."""
    if has_one and has_other:
        raise ConfigError(f"{one}: not together with {other}; leave one of them out")
