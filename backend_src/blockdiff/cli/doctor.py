"""``blockdiff doctor``: what this machine has and lacks for serving, and what to do about it.

Knows which checks there are and how they are shown; fetches and changes nothing.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from blockdiff.cli.dtype_option import ComputeDtype
from blockdiff.cli.engine_options import Kernels
from blockdiff.embedded import checks
from blockdiff.embedded.checks import Finding, guarded
from blockdiff.errors import BlockdiffError, ConfigError
from blockdiff.host_memory import available_memory
from blockdiff.kernel_choice import implementation_of, read_choices, triton_version, use_kernels
from blockdiff_kernels.implementation import OPS, Implementation, current_choices, spell_choices

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    model: Annotated[
        Path | None, typer.Option(help="Checkpoint folder to check too.", show_default=False)
    ] = None,
    dtype: ComputeDtype = "float32",
    kernels: Kernels = None,
    host: Annotated[str, typer.Option(help="Address that serve would listen on.")] = "127.0.0.1",
    http_port: Annotated[int, typer.Option()] = 8000,
    grpc_port: Annotated[int, typer.Option()] = 8001,
    metrics_port: Annotated[int, typer.Option()] = 8002,
    output_format: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Check what this machine needs to serve; exit code 1 when something is missing."""
    if output_format not in ("table", "json"):
        raise ConfigError(f"--format {output_format}: allowed are table and json")
    if kernels is not None:
        read_choices("kernels", kernels)
    findings = examine(model, dtype, kernels, host, (http_port, grpc_port, metrics_port))
    if output_format == "json":
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        show_table(findings)
    raise typer.Exit(1 if any(finding.level == "fail" for finding in findings) else 0)


def examine(
    model: Path | None, dtype: str, kernels: str | None, host: str, ports: tuple[int, int, int]
) -> list[Finding]:
    """Run every check; none of them stops the others."""
    named: list[tuple[str, Callable[[], Finding]]] = [
        ("python", checks.check_python),
        ("libpython", checks.check_libpython),
        ("tritonserver", checks.check_tritonserver),
        ("python stub", checks.check_stub),
        ("shared memory", checks.check_shared_memory),
        ("ports", partial(checks.check_ports, host, ports)),
        ("torch", check_torch),
        ("kernels", partial(check_kernels, kernels)),
        ("processor", checks.check_processor),
        ("perf_analyzer", checks.check_perf_analyzer),
    ]
    findings = [guarded(name, check) for name, check in named]
    return findings + (check_model(model, dtype) if model is not None else [])


def check_torch() -> Finding:
    """torch, its build and the devices it sees."""
    try:
        import torch
    except (ImportError, OSError) as error:
        advice = "install it: make install, or pip install torch==2.13.0"
        return Finding("torch", "fail", str(error), advice)
    devices = torch.cuda.device_count()
    seen = f"{devices} CUDA device{'s' if devices != 1 else ''}" if devices else "CPU only"
    return Finding("torch", "ok", f"{torch.__version__}, {seen}, {torch.get_num_threads()} threads")


def check_kernels(text: str | None = None) -> Finding:
    """Which implementations of the kernels run where, and whether the choice can run.

    None: the choice in force.
    """
    from torch.cuda import device_count

    places = ["cpu", "cuda"] if device_count() else ["cpu"]
    for place in places:
        use_kernels(text, place)
    said = "; ".join(f"on {place}: {_in_words(place)}" for place in places)
    compiler = triton_version() or "is not installed"
    return Finding(
        "kernels", "ok", f"{spell_choices(current_choices())}: {said}; triton {compiler}"
    )


def _in_words(device: str) -> str:
    """Ops by the implementation that runs, the rest of them after the named ones."""
    ops: dict[Implementation, list[str]] = {}
    for op in OPS:
        ops.setdefault(implementation_of(op, device), []).append(op)
    *rarer, usual = sorted(ops, key=lambda own: len(ops[own]))
    named = [f"{own} for {', '.join(ops[own])}" for own in rarer]
    return ", ".join([*named, f"{usual} for the rest" if named else str(usual)])


def check_model(model: Path, dtype: str) -> list[Finding]:
    """Checkpoint files, tokenizer and the memory that the weights take."""
    from blockdiff.cli.checkpoint_check import (
        check_checkpoint_files,
        check_tokenizer,
        weight_bytes,
    )

    findings = []
    try:
        config = check_checkpoint_files(model, dtype)
    except BlockdiffError as error:
        advice = "fix or fetch the files named"
        return [Finding("checkpoint", "fail", str(error), advice)]
    findings.append(Finding("checkpoint", "ok", f"{config.model_type} at {model}"))
    try:
        tokens = check_tokenizer(model, config)
        detail = f"{tokens} tokens, embedding of {config.vocab_size}"
        findings.append(Finding("tokenizer", "ok", detail))
        findings.append(check_tool_calls(model))
    except BlockdiffError as error:
        what, _, advice = str(error).partition("; ")
        findings.append(Finding("tokenizer", "fail", what, advice))
    findings.append(check_manifest(model))
    findings.append(check_memory(weight_bytes(model, dtype)))
    return findings


def check_tool_calls(model: Path) -> Finding:
    """In which form answers are searched for tool calls, and what says so."""
    from blockdiff.text import Tokenizer

    found = Tokenizer.load(model).tool_form
    detail = f"form {found.form.name}: {found.reason}"
    if found.form.is_confirmed:
        return Finding("tool calls", "ok", detail)
    advice = "no public source shows this model's calls; compare one, else serve --tool-form NAME"
    return Finding("tool calls", "warn", detail, advice)


def check_manifest(model: Path) -> Finding:
    """Whether the weights can be verified; reading them all is left to ``weights verify``."""
    from blockdiff.weights.identity import NO_MANIFEST, identify

    digest = identify(model, is_verification_wanted=False).manifest_sha256
    if digest == NO_MANIFEST:
        advice = f"list what is there: blockdiff weights manifest {model}"
        return Finding("weights", "warn", "no manifest, so damage goes unnoticed", advice)
    advice = f"compare every byte: blockdiff weights verify {model}"
    return Finding("weights", "ok", f"contents not compared here; manifest {digest}", advice)


def check_memory(needed: int) -> Finding:
    """The weights against free memory; caches come on top."""
    free = available_memory()
    detail = f"weights {needed / 1e9:.2f} GB, {free / 1e9:.1f} GB free"
    if needed > free:
        return Finding("memory", "fail", detail, "use --dtype bfloat16 or a larger machine")
    if needed > 0.8 * free:
        return Finding("memory", "warn", detail, "little room is left for caches")
    return Finding("memory", "ok", detail)


def show_table(findings: list[Finding]) -> None:
    """A table for people; what to do stands below the line that needs it."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        state = Text(f"{finding.level:5}", style=_STYLES[finding.level])
        console.print(state + Text(f"{finding.name:14} {finding.detail}", style="default"))
        if finding.advice:
            console.print(Text(f"{'':5}{'':14} -> {finding.advice}"))
