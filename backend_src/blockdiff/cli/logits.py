"""``blockdiff logits``: raw logits and states of a checkpoint, for parity checks.

Knows the command line and the output file; the work is in ``logit_requests`` and ``logit_runner``.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from blockdiff.cli.dtype_option import ComputeDtype
from blockdiff.cli.engine_options import Kernels
from blockdiff.cli.parallel_options import RankTimeout, TensorParallel
from blockdiff.errors import ConfigError, RequestError
from blockdiff.kernel_choice import use_kernels
from blockdiff.parallel.settings import RANK_TIMEOUT, ParallelSettings

if TYPE_CHECKING:
    from torch import Tensor


def logits(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")],
    out: Annotated[Path, typer.Option(help="Safetensors file to write.")],
    phase: Annotated[str | None, typer.Option(help="prefill, preview or commit.")] = None,
    input_ids: Annotated[
        str | None, typer.Option(help="Token ids, such as 1,2,3: the prompt or committed prefix.")
    ] = None,
    block_ids: Annotated[
        str | None, typer.Option(help="Token ids of the block; preview: all masks if absent.")
    ] = None,
    requests: Annotated[
        Path | None, typer.Option(help="JSON lines, one request each (golden entries work).")
    ] = None,
    block_length: Annotated[int | None, typer.Option(help="Block length.")] = None,
    dtype: ComputeDtype = "float32",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    kernels: Kernels = None,
    tensor_parallel: TensorParallel = 1,
    tensor_parallel_timeout: RankTimeout = RANK_TIMEOUT,
) -> None:
    """Write logits [positions, vocab] and states of one phase, or of every line of a file."""
    single = {
        "phase": phase,
        "input_ids": input_ids,
        "block_ids": block_ids,
        "block_length": block_length,
    }
    _check_usage(single, requests, out)
    use_kernels(kernels, device)
    parallel = ParallelSettings(tensor_parallel, tensor_parallel_timeout)
    _run(model, out, single, requests, (device, dtype, parallel))


def _run(
    folder: Path,
    out: Path,
    single: dict[str, Any],
    requests: Path | None,
    how: tuple[str, str, ParallelSettings],
) -> None:
    # torch takes seconds to import, which other commands and --help need not wait for
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    from blockdiff.cli.loading import progress_bar, read_model
    from blockdiff.cli.logit_requests import parse_request, read_requests
    from blockdiff.cli.logit_runner import LogitRunner
    from blockdiff.cli.recorded import RecordedTensors

    model = read_model(folder, *how)
    if requests is not None:
        asked = read_requests(requests, model.info, model.formulation)
    else:
        asked = [parse_request(_single_fields(single), model.info, model.formulation)]
    longest = max(request.total_tokens for request in asked)
    runner = LogitRunner(model, longest, RecordedTensors(folder))
    tensors: dict[str, Tensor] = {}
    with progress_bar("requests") as advance:
        for number, request in enumerate(asked, start=1):
            prefix = f"{request.name}/" if request.name else ""
            for role, tensor in runner.run(request).items():
                # a file may not hold two names for the same memory
                tensors[prefix + role] = tensor.detach().cpu().clone().contiguous()
            advance(number, len(asked))
    try:
        save_file(tensors, str(out), metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"--out {out}: cannot be written ({error})") from None


def _check_usage(single: dict[str, Any], requests: Path | None, out: Path) -> None:
    """Refuse what no model could make sense of, before one is loaded."""
    given = sorted(name for name, value in single.items() if value is not None)
    if requests is not None and given:
        raise RequestError(f"--requests cannot be combined with --{given[0].replace('_', '-')}")
    if requests is None and single["phase"] is None:
        raise RequestError("give --phase (prefill, preview or commit) or --requests FILE")
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: folder {out.parent} does not exist")


def _single_fields(single: dict[str, Any]) -> dict[str, Any]:
    """The command line as the fields of one request line."""
    fields = {name: value for name, value in single.items() if value is not None}
    for name in ("input_ids", "block_ids"):
        if name in fields:
            try:
                fields[name] = [int(part) for part in fields[name].split(",") if part.strip()]
            except ValueError:
                text = fields[name]
                option = name.replace("_", "-")
                raise RequestError(f"--{option} is {text!r}; must be ids like 1,2,3") from None
    return fields
