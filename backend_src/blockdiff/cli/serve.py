"""``blockdiff serve``: a checkpoint behind Triton Inference Server, in the foreground.

Knows the command line and the repository's settings; starting and watching is blockdiff.embedded's.
"""

from dataclasses import replace
from pathlib import Path

import typer

from blockdiff.cli import serve_options as option
from blockdiff.cli.dtype_option import ServedDtype
from blockdiff.cli.engine_options import Kernels, optional_bytes
from blockdiff.cli.serve_options import ServeOptions
from blockdiff.cli.serve_run import HEARTBEAT, RELAY, run_supervised, say
from blockdiff.cli.serve_weights import verify_served_weights, weights_parameters
from blockdiff.embedded import TritonInstallation, TritonServer, find_installation
from blockdiff.embedded.heartbeat import VARIABLE as HEARTBEAT_VARIABLE
from blockdiff.embedded.logfile import new_log_path
from blockdiff.embedded.ports import require_free
from blockdiff.embedded.repository import (
    ENGINE_MODEL,
    build_repository,
    model_names,
    template_repository,
)
from blockdiff.embedded.supervisor import SupervisorPolicy
from blockdiff.embedded.work_folder import work_folder
from blockdiff.errors import ConfigError
from blockdiff.kernel_choice import use_kernels
from blockdiff.weights.identity import WeightsIdentity

# What callers name; Triton loads what these need.
ENTRY_MODELS = ("ensemble", "unary")


def make_server(
    options: ServeOptions, work: Path, installation: TritonInstallation
) -> TritonServer:
    """The server for these options; ``work`` takes its repository, sockets and log."""
    template = options.repository or template_repository()
    parameters = {
        "device": options.device,
        "dtype": options.dtype,
        "tensor_parallel": options.tensor_parallel,
        "tensor_parallel_timeout_seconds": options.tensor_parallel_timeout,
        **options.engine,
        "load_aware": "yes" if options.load_aware else None,
        "load_aware_lowest_threshold": options.load_aware_threshold,
        "load_aware_fewest_steps": options.load_aware_steps,
        **weights_parameters(options.weights),
    }
    given = {key: str(value) for key, value in parameters.items() if value is not None}
    repository = build_repository(
        template,
        work / "model_repository",
        max_queue_size=options.max_queue_size,
        parameters=given,
    )
    names = [name for name in ENTRY_MODELS if (repository / name).is_dir()]
    return TritonServer(
        repository,
        http_port=options.http_port,
        grpc_port=options.grpc_port,
        metrics_port=options.metrics_port,
        host=options.host,
        log_path=options.log_file or new_log_path(),
        load_models=names or model_names(repository),
        environment=model_environment(options, work),
        exit_timeout_seconds=options.exit_timeout,
        extra_args=server_arguments(options, installation),
        installation=installation,
    )


def server_arguments(options: ServeOptions, installation: TritonInstallation) -> tuple[str, ...]:
    """Flags of tritonserver beyond ports and models; what an older release lacks is left out."""
    arguments = ["--metrics-config=histogram_latencies=true", "--strict-readiness=true"]
    # Ensembles run their steps on these threads.
    if installation.supports("--grpc-infer-thread-count"):
        arguments.append(f"--grpc-infer-thread-count={options.grpc_threads}")
    return (*arguments, *options.triton_args)


def model_environment(options: ServeOptions, work: Path) -> dict[str, str]:
    """What the models of the repository read when their config.pbtxt leaves a setting empty."""
    values = {
        "BLOCKDIFF_MODEL": str(options.model.resolve()),
        "BLOCKDIFF_SLOTS": options.slots,
        "BLOCKDIFF_THREADS": options.threads,
        "BLOCKDIFF_MAX_CONTEXT": options.max_context,
        "BLOCKDIFF_TOOL_FORM": options.tool_form,
        "BLOCKDIFF_RELAY_SOCKET": work / RELAY,
        HEARTBEAT_VARIABLE: work / HEARTBEAT,
        # The engine's own thread count rules; tokenizers would warn after the backend's fork.
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def serve(
    model: option.Model,
    model_repository: option.ModelRepository = None,
    host: option.Host = "127.0.0.1",
    http_port: option.HttpPort = 8000,
    grpc_port: option.GrpcPort = 8001,
    metrics_port: option.MetricsPort = 8002,
    slots: option.Slots = None,
    max_queue_size: option.MaxQueueSize = None,
    threads: option.Threads = None,
    max_context: option.MaxContext = None,
    tool_form: option.ToolForm = None,
    prefill_token_budget: option.PrefillTokenBudget = None,
    kv_cache_size: option.KvCacheSize = None,
    prefix_cache: option.PrefixCache = None,
    snapshot_size: option.SnapshotSize = None,
    snapshot_interval: option.SnapshotInterval = None,
    truncate_last_block: option.TruncateLastBlock = False,
    deterministic: option.Deterministic = False,
    expert_statistics_interval: option.ExpertStatisticsInterval = None,
    kernels: Kernels = None,
    cuda_graphs: option.CudaGraphs = None,
    device: option.Device = None,
    dtype: ServedDtype = None,
    tensor_parallel: option.TensorParallel = None,
    tensor_parallel_timeout: option.TensorParallelTimeout = None,
    load_aware: option.LoadAware = False,
    load_aware_threshold: option.LoadAwareThreshold = None,
    load_aware_steps: option.LoadAwareSteps = None,
    verify: option.Verify = None,
    exit_timeout_secs: option.ExitTimeoutSecs = 30,
    grpc_infer_thread_count: option.GrpcInferThreadCount = 8,
    restart: option.Restart = True,
    max_restarts: option.MaxRestarts = 3,
    heartbeat_timeout: option.HeartbeatTimeout = 30.0,
    start_timeout: option.StartTimeout = 600.0,
    log_file: option.LogFile = None,
    triton_arg: option.TritonArg = None,
    output_format: option.OutputFormat = "text",
) -> None:
    """Serve a checkpoint on Triton Inference Server, in the foreground.

    Uses the tritonserver on PATH (container) or unpacks one into the user's cache. A dead or hung
    engine is noticed and the server restarted. SIGTERM lets running requests finish.
    """
    if output_format not in ("text", "json"):
        raise ConfigError(f"--format {output_format}: allowed are text and json")
    option.check_tool_form(tool_form)
    option.refuse_together("--deterministic", deterministic, "--load-aware", load_aware)
    option.refuse_together("--deterministic", deterministic, "--cuda-graphs", cuda_graphs is True)
    kept = snapshot_size is not None or snapshot_interval is not None
    option.refuse_together("--no-prefix-cache", prefix_cache is False, "--snapshot-...", kept)
    options = ServeOptions(
        model=model,
        repository=model_repository,
        host=host,
        http_port=http_port or None,
        grpc_port=grpc_port or None,
        metrics_port=metrics_port or None,
        slots=slots,
        max_queue_size=max_queue_size,
        threads=threads,
        max_context=max_context,
        tool_form=tool_form,
        engine=option.as_parameters(
            prefill_token_budget=prefill_token_budget,
            kv_cache_bytes=optional_bytes("--kv-cache-size", kv_cache_size),
            prefix_cache=prefix_cache,
            snapshot_bytes=optional_bytes("--snapshot-size", snapshot_size),
            snapshot_interval=snapshot_interval,
            truncate_last_block=truncate_last_block or None,
            deterministic=deterministic or None,
            kernels=kernels,
            cuda_graphs=cuda_graphs,
            expert_statistics_interval=expert_statistics_interval,
        ),
        device=device,
        dtype=dtype,
        tensor_parallel=tensor_parallel,
        tensor_parallel_timeout=tensor_parallel_timeout,
        load_aware=load_aware,
        load_aware_threshold=load_aware_threshold,
        load_aware_steps=load_aware_steps,
        exit_timeout=exit_timeout_secs,
        grpc_threads=grpc_infer_thread_count,
        log_file=log_file,
        triton_args=tuple(triton_arg or ()),
    )
    policy = SupervisorPolicy(
        restart=restart,
        max_restarts=max_restarts,
        heartbeat_timeout_seconds=heartbeat_timeout,
        start_timeout_seconds=start_timeout,
    )
    if cuda_graphs is True:
        # a repository of one's own may name other devices
        device_known = device or ("cpu" if model_repository is None else "cuda")
        option.check_cuda_graphs(device_known, tensor_parallel, kernels)
    use_kernels(kernels, device or "cpu", deterministic)
    options = replace(options, weights=_check_first(options, verify))
    installation = find_installation(say)
    with work_folder() as work:
        server = make_server(options, work, installation)
        code = run_supervised(server, work, policy, output_format)
    raise typer.Exit(code)


def _check_first(options: ServeOptions, verify: bool | None) -> WeightsIdentity | None:
    """Find what cannot work before a process is started; returns which weights there are."""
    from blockdiff.cli.checkpoint_check import check_checkpoint

    if options.repository is not None and not options.repository.is_dir():
        raise ConfigError(f"--model-repository {options.repository}: no such folder")
    bounds = (options.load_aware_threshold, options.load_aware_steps)
    if not options.load_aware and bounds != (None, None):
        raise ConfigError("--load-aware-threshold, --load-aware-steps: only with --load-aware")
    repository = options.repository or template_repository()
    say(f"checking {options.model}")
    if not (repository / ENGINE_MODEL).is_dir():
        if not options.model.is_dir():
            raise ConfigError(f"model folder {options.model}: not found")
        return None
    dtype, device = options.dtype or "float32", options.device or "cpu"
    config = check_checkpoint(options.model, dtype, device, options.tensor_parallel or 1)
    most = config.max_position_embeddings
    if options.max_context is not None and options.max_context > most:
        raise ConfigError(f"--max-context {options.max_context}: the model allows 1 to {most}")
    ports = (options.http_port, options.grpc_port, options.metrics_port)
    named = zip(("http port", "grpc port", "metrics port"), ports, strict=True)
    # before the weights are hashed, which may take minutes
    require_free({name: port for name, port in named if port is not None}, options.host)
    return verify_served_weights(options.model, verify, say)
