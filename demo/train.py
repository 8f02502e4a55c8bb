"""Train the demo checkpoint from scratch: `python -m demo.train` (about 100 minutes on one core).

Both losses in every step: masked-diffusion cross-entropy on noisy blocks that see the clean prefix
through keys, values and carried state, and next-token cross-entropy on the clean causal stream.
Stops and resumes by itself: the training state is written every `--save-every` steps.
"""

import json
import math
import time
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn import functional as F

from demo.data import IGNORE, Batch, Packer
from demo.export import export_checkpoint
from demo.model import DemoModel
from demo.muon import Muon
from demo.streams import DemoConfig, build_streams
from demo.tokenizer import build_tokenizer

WARM_UP, DECAY = 200, 0.6  # steps; share of the run that decays linearly to zero
ADAM_RATE, MUON_RATE = 3e-3, 0.02
CLEAN_LOSS, BALANCE_LOSS = 0.6, 0.01
NOT_FOR_MUON = (
    "conv",
    "embed",
    "lm_head",
    "mlp.gate.",
    "expert_gate",
    "in_proj_a",
    "in_proj_b",
)


def losses(model: DemoModel, batch: Batch) -> tuple[Tensor, Tensor]:
    """-> total loss and [noisy CE, clean CE, noisy accuracy, clean accuracy, balance]."""
    streams = build_streams(batch.real, batch.sample, batch.chunk, model.config)
    with torch.autocast("cpu", torch.bfloat16):
        hidden, balance = model(batch.clean, batch.noisy, streams)
        logits = model.lm_head(hidden)
    target = torch.cat([batch.clean_target, batch.noisy_target.flatten(1)], 1)
    ce = F.cross_entropy(
        logits.float().flatten(0, 1), target.flatten(), ignore_index=IGNORE, reduction="none"
    ).view(target.shape)
    right = (logits.argmax(-1) == target).float()
    length = streams.clean_length
    clean = (batch.clean_target != IGNORE).float()
    noisy = batch.noisy_weight.flatten(1)
    clean_ce = (ce[:, :length] * clean).sum() / clean.sum()
    noisy_ce = (ce[:, length:] * noisy).sum() / noisy.sum()
    clean_hit = (right[:, :length] * clean).sum() / clean.sum()
    noisy_hit = (right[:, length:] * noisy).sum() / noisy.sum()
    total = noisy_ce + CLEAN_LOSS * clean_ce + BALANCE_LOSS * balance
    return total, torch.stack([noisy_ce, clean_ce, noisy_hit, clean_hit, balance]).detach()


def rate(step: int, steps: int) -> float:
    """Warm up, hold, decay linearly to zero."""
    return min(1.0, (step + 1) / WARM_UP, (steps - step) / (DECAY * steps))


def make_optimisers(model: DemoModel) -> list[torch.optim.Optimizer]:
    matrices: list[Tensor] = []
    rest: list[Tensor] = []
    for name, p in model.named_parameters():
        hidden = p.ndim >= 2 and not any(word in name for word in NOT_FOR_MUON)
        (matrices if hidden else rest).append(p)
    adam = torch.optim.AdamW(rest, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    return [adam, Muon(matrices, lr=MUON_RATE)]


class Trainer:
    """Model, optimisers, data and the place where their state is kept."""

    def __init__(self, folder: Path, seed: int, sequences: int) -> None:
        torch.manual_seed(seed)
        tokenizer = build_tokenizer()
        self.model = DemoModel(DemoConfig(vocab_size=-(-tokenizer.get_vocab_size() // 8) * 8))
        self.optimisers = make_optimisers(self.model)
        self.base_rates = [o.param_groups[0]["lr"] for o in self.optimisers]
        self.packer = Packer(tokenizer, seed, sequences)
        self.folder, self.step, self.seconds = folder, 0, 0.0
        self.state_file = folder / "training_state.pt"

    def save(self) -> None:
        state = {
            "step": self.step,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "optimisers": [o.state_dict() for o in self.optimisers],
            "packer": self.packer.__dict__ | {"template": None, "tokenizer": None},
        }
        partial = self.state_file.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.state_file)

    def resume(self) -> None:
        # our own file, not a downloaded one: the data stream's state needs more than tensors
        state = torch.load(self.state_file, weights_only=False)
        self.step, self.seconds = state["step"], state["seconds"]
        self.model.load_state_dict(state["model"])
        for optimiser, saved in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(saved)
        kept = {"template": self.packer.template, "tokenizer": self.packer.tokenizer}
        self.packer.__dict__.update(state["packer"] | kept)

    def train_step(self, compiled, steps: int) -> Tensor:
        loss, metrics = compiled(self.model, self.packer.batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser, base in zip(self.optimisers, self.base_rates, strict=True):
            for group in optimiser.param_groups:
                group["lr"] = base * rate(self.step, steps)
            optimiser.step()
            optimiser.zero_grad()
        self.step += 1
        return metrics


def main(
    steps: Annotated[int, typer.Option(help="optimiser steps in all")] = 7000,
    out: Annotated[Path, typer.Option(help="where the checkpoint goes")] = Path("demo/checkpoint"),
    work: Annotated[Path, typer.Option(help="where the training state is kept")] = Path(
        "out/train"
    ),
    seed: int = 1,
    sequences: Annotated[int, typer.Option(help="packed sequences in a step")] = 16,
    save_every: int = 500,
    compile: Annotated[
        bool, typer.Option(help="torch.compile: minutes to start, then 2.5x")
    ] = True,
) -> None:
    """Train, or go on where the last run stopped, then write the checkpoint."""
    torch.set_num_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(work, seed, sequences)
    if trainer.state_file.exists():
        trainer.resume()
    compiled = torch.compile(losses) if compile else losses
    average: Tensor | None = None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn()) as bar, (work / "log.jsonl").open("a") as log:
        task = bar.add_task("compiling", total=steps, completed=trainer.step)
        while trainer.step < steps:
            began = time.perf_counter()
            metrics = trainer.train_step(compiled, steps)
            trainer.seconds += time.perf_counter() - began
            average = metrics if average is None else average.lerp(metrics, 0.03)
            if trainer.step % 20 == 0:
                names = ("noisy_ce", "clean_ce", "noisy_hit", "clean_hit", "balance")
                values = dict(zip(names, (round(v, 4) for v in average.tolist()), strict=True))
                bar.update(task, completed=trainer.step, description=str(values))
                line = {"step": trainer.step, "seconds": round(trainer.seconds), **values}
                log.write(json.dumps(line | {"samples": trainer.packer.samples_seen}) + "\n")
                log.flush()
                if not math.isfinite(values["noisy_ce"]):
                    raise SystemExit("the loss is no longer finite; lower the rates")
            if trainer.step % save_every == 0:
                trainer.save()
    trainer.save()
    export_checkpoint(trainer.model, out)
    print(f"{trainer.step} steps, {trainer.seconds:.0f} s, checkpoint in {out}")


if __name__ == "__main__":
    typer.run(main)
