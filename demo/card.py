"""Write the demo checkpoint's model card from what was measured: `python -m demo.card`.

Reads the JSON of `blockdiff eval` and the training log; computes no number of its own.
"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from blockdiff.weights.manifest import write_manifest
from demo.data import STAGES
from demo.export import INITIALISED

TEMPLATE = Path(__file__).parent / "model_card.md"


def table(scores: list[dict[str, Any]]) -> str:
    """Markdown: one line per setting, exact match per task, then all, TPF and tokens/s."""
    tasks = list(dict.fromkeys(score["task"] for score in scores if score["task"] != "all"))
    lines = [
        "| setting | " + " | ".join(tasks) + " | all | TPF | tokens/s |",
        "|---" * (len(tasks) + 4) + "|",
    ]
    for setting in dict.fromkeys(score["setting"] for score in scores):
        row = {score["task"]: score for score in scores if score["setting"] == setting}
        cells = [f"{100 * row[task]['exact_match']:.0f} %" for task in tasks]
        whole = row["all"]
        cells += [
            f"**{100 * whole['exact_match']:.1f} %**",
            f"{whole['tokens_per_forward']:.2f}",
            f"{whole['tokens_per_second']:.0f}",
        ]
        lines.append(f"| {setting} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(
    evaluation: Annotated[Path, typer.Option(help="JSON of `blockdiff eval --out`")],
    log: Annotated[Path, typer.Option(help="log.jsonl of the training run")],
    checkpoint: Path = Path("demo/checkpoint"),
) -> None:
    """Write README.md and the manifest into the checkpoint folder and print the table."""
    result = json.loads(evaluation.read_text(encoding="utf-8"))
    last = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    index = json.loads((checkpoint / "model.safetensors.index.json").read_text(encoding="utf-8"))
    measured = table(result["scores"])
    total = index["metadata"]["total_size"]
    text = TEMPLATE.read_text(encoding="utf-8").format(
        parameters=index["metadata"]["total_parameters"] / 1e6,
        megabytes=total / 1e6,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        experts=config["num_experts"],
        top=config["num_experts_per_tok"],
        inner=config["moe_intermediate_size"],
        block=config["block_size"],
        vocab=config["vocab_size"],
        prompts=result["prompts"],
        steps=last["step"],
        samples=last["samples"],
        minutes=last["seconds"] / 60,
        stages=len(STAGES),
        note=result["note"],
        table=measured,
    )
    (checkpoint / "README.md").write_text(text, encoding="utf-8")
    write_manifest(checkpoint, initialised=INITIALISED)
    print(measured)


if __name__ == "__main__":
    typer.run(main)
