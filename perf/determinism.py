"""What the deterministic mode costs: rounds of both modes in turn, on two models.

A round of n slots is what decoding does most of the time: each commits a block and previews the
next one, with all logits. Times are medians of processor time; the modes take turns, so that both
see the same load.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
import typer
from safetensors.torch import save_file

from blockdiff.checkpoint import load_model
from blockdiff.config import parse_config
from blockdiff.core import Phase
from blockdiff.errors import ConfigError
from blockdiff.models import RoundBatch, Segment
from blockdiff.models.expert_layout import FUSED
from blockdiff.models.registry import FAMILIES
from blockdiff.models.trunk import LanguageModel
from perf.command import run_command

CHECKPOINT = Path(__file__).resolve().parents[1] / "demo" / "checkpoint"

# 77 M parameters: a hybrid of eight layers with 32 experts
LARGER = {
    "model_type": "clover_moe",
    "vocab_size": 16384,
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "mask_token_id": 16383,
    "eos_token_id": 1,
    "block_size": 16,
    "max_position_embeddings": 2048,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
CONTEXT, PREFILL = 256, 512
Round = Callable[[], object]


def write_random(folder: Path, config: dict[str, object]) -> Path:
    """A checkpoint of ``config`` with small random weights."""
    torch.manual_seed(0)
    parsed = parse_config(config)
    shapes = FAMILIES[parsed.model_type].shapes(parsed, FUSED)
    names = {n if n.startswith("lm_head") else f"model.{n}": s for n, s in shapes.items()}
    tensors = {name: torch.randn(shape) * 0.05 for name, shape in names.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def decoding_round(model: LanguageModel, slots: int) -> Round:
    """Commits and previews of ``slots`` slots whose contexts differ a little."""
    block, caches = model.info.block_length, model.new_caches(slots, 2 * CONTEXT)
    contexts = [CONTEXT + 5 * slot for slot in range(slots)]
    tokens = list(range(block))
    segments = [Segment(Phase.COMMIT, slot, contexts[slot], tokens) for slot in range(slots)]
    segments += [
        Segment(Phase.PREVIEW, slot, contexts[slot] + block, tokens, range(block))
        for slot in range(slots)
    ]
    batch = RoundBatch.from_segments(segments)
    return lambda: model.forward(batch, caches)


def prefill_round(model: LanguageModel) -> Round:
    """One prompt of ``PREFILL`` tokens."""
    caches = model.new_caches(1, PREFILL)
    tokens = [token % model.info.vocab_size for token in range(PREFILL)]
    batch = RoundBatch.from_segments([Segment(Phase.PREFILL, 0, 0, tokens, [PREFILL - 1])])
    return lambda: model.forward(batch, caches)


def rounds(model: LanguageModel) -> dict[str, Round]:
    """The rounds that are measured, by name."""
    found = {f"slots {slots}": decoding_round(model, slots) for slots in (1, 4, 8)}
    return {**found, f"prefill {PREFILL}": prefill_round(model)}


def measure(plain: Round, steady: Round, repeats: int) -> tuple[float, float]:
    """Medians in milliseconds; the first rounds, which try sizes out, are not counted."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats + 3):
        for own, run in zip(times, (plain, steady), strict=True):
            began = time.process_time()
            run()
            if turn >= 3:
                own.append(1e3 * (time.process_time() - began))
    return statistics.median(times[0]), statistics.median(times[1])


def report(name: str, folder: Path, dtype: str, repeats: int) -> None:
    """Print a line per kind of round of one model."""
    plain, steady = (load_model(folder, dtype=dtype, deterministic=flag) for flag in (False, True))
    pairs = zip(rounds(plain).items(), rounds(steady).values(), strict=True)
    for (label, one), other in pairs:
        first, second = measure(one, other, repeats)
        print(f"{name:8} {dtype:9} {label:12} {first:9.2f} {second:13.2f} {second / first:6.2f}")


def run(
    checkpoint: Annotated[Path, typer.Option(help="The first model's folder.")] = CHECKPOINT,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of each kind and mode.")] = 15,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads.")] = 1,
) -> None:
    """What the deterministic mode costs: a line per model and kind of round."""
    if dtype not in ("float32", "bfloat16"):
        raise ConfigError(f"--dtype {dtype}: allowed are float32 and bfloat16")
    torch.set_num_threads(threads)
    print(
        f"{'model':8} {'dtype':9} {'round':12} {'plain ms':>9} {'deterministic':>13} {'ratio':>6}"
    )
    report("demo", checkpoint, dtype, repeats)
    with tempfile.TemporaryDirectory() as folder:
        report("random", write_random(Path(folder), LARGER), dtype, repeats)


if __name__ == "__main__":
    run_command("determinism", run, "Example: `python -m perf.determinism --dtype bfloat16`")
