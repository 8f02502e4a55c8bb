"""``blockdiff eval --compare``: a model against the one it was made from, per task.

Knows engines, questions and how results are shown; nothing of flags.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from blockdiff.engine import Engine
from blockdiff.errors import ConfigError
from blockdiff.evaluation.divergence import Divergence, measure_divergence
from blockdiff.evaluation.run import ALL_TASKS, Question, Score, Setting, add_scores, run_task
from blockdiff.model_info import NO_MASK_TOKEN
from blockdiff.models.base import BlockDiffusionModel
from blockdiff.text import Tokenizer

COMPARE_NOTE = (
    "agreement: equal tokens at equal places of the outputs, over the longer output. KL: mean of "
    "KL(reference || model) in nats over the positions of the reference's outputs, each block "
    "predicted from all masks after the same committed tokens."
)


@dataclass(frozen=True)
class Comparison:
    """Sums over some prompts."""

    model: Score
    reference: Score
    equal_tokens: int
    longest_tokens: int
    divergence: Divergence

    @property
    def agreement(self) -> float:
        return self.equal_tokens / max(self.longest_tokens, 1)

    def as_json(self) -> dict[str, Any]:
        return {
            "task": self.model.task,
            "token_agreement": round(self.agreement, 4),
            "mean_kl": round(self.divergence.mean, 6),
            "model": self.model.as_json(),
            "reference": self.reference.as_json(),
        }


def reference_dtype(dtype: str) -> str:
    """What the reference computes in: what the model's activations are in."""
    return "float32" if dtype == "float32" else "bfloat16"


def check_comparable(model: BlockDiffusionModel, reference: BlockDiffusionModel) -> None:
    """Raise ConfigError unless both models predict the same blocks of the same tokens."""
    for field in ("model_type", "vocab_size", "block_length", "mask_token_id", "block_anchor"):
        own, other = getattr(model.info, field), getattr(reference.info, field)
        if own != other:
            raise ConfigError(f"compare: {field} is {other!r}, but the model's is {own!r}")
    info = model.info
    if info.mask_token_id == NO_MASK_TOKEN and not info.supports_autoregressive:
        raise ConfigError(f"compare: models of type {info.model_type} cannot be compared yet")


def compare_models(
    engines: Sequence[Engine],
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    setting: Setting,
    max_tokens: int,
    on_task: Callable[[int, int], None] = lambda done, total: None,
) -> list[Comparison]:
    """One comparison per task, then one over all; ``engines``: the model's, the reference's."""
    tasks = list(dict.fromkeys(question.task for question in questions))
    found = []
    for number, task in enumerate(tasks):
        chosen = [question for question in questions if question.task == task]
        runs = [run_task(engine, tokenizer, chosen, setting, max_tokens) for engine in engines]
        outputs = [[outcome.output_ids for outcome in outcomes] for _, outcomes in runs]
        pairs = list(zip(*outputs, strict=True))
        prompts = [question.input_ids for question in chosen]
        total = Divergence(0.0, 0)
        for prompt, answer in zip(prompts, outputs[1], strict=True):
            models = (engines[0].model, engines[1].model)
            total = _add(total, measure_divergence(*models, prompt, answer))
        found.append(
            Comparison(
                model=runs[0][0],
                reference=runs[1][0],
                equal_tokens=sum(sum(map(int.__eq__, a, b)) for a, b in pairs),
                longest_tokens=sum(max(len(a), len(b)) for a, b in pairs),
                divergence=total,
            )
        )
        on_task(number + 1, len(tasks))
    return [*found, _sum(setting, found)]


def print_comparison(found: Sequence[Comparison], sizes: Sequence[int], console: Console) -> None:
    """One table: a row per task, then memory of the weights."""
    table = Table()
    for name in ("task", "prompts", "exact match", "(reference)", "agreement", "mean KL"):
        table.add_column(name, justify="left" if name == "task" else "right", no_wrap=True)
    table.add_column("tokens/s", justify="right", no_wrap=True)
    table.add_column("(reference)", justify="right", no_wrap=True)
    for row in found:
        own, other = row.model, row.reference
        table.add_row(
            own.task,
            str(own.prompts),
            f"{own.exact_match:.1%}",
            f"{other.exact_match:.1%}",
            f"{row.agreement:.1%}",
            f"{row.divergence.mean:.5f}",
            f"{own.tokens_per_second:.0f}",
            f"{other.tokens_per_second:.0f}",
            style="bold" if own.task == ALL_TASKS else None,
        )
    console.print(table)
    share = sizes[0] / sizes[1]
    console.print(
        f"weights in memory: {sizes[0] / 1e6:.2f} MB, reference {sizes[1] / 1e6:.2f} MB "
        f"({share:.0%})",
        highlight=False,
    )
    console.print(COMPARE_NOTE, style="dim", soft_wrap=True, highlight=False)


def _sum(setting: Setting, found: Sequence[Comparison]) -> Comparison:
    return Comparison(
        model=add_scores(setting, [row.model for row in found]),
        reference=add_scores(setting, [row.reference for row in found]),
        equal_tokens=sum(row.equal_tokens for row in found),
        longest_tokens=sum(row.longest_tokens for row in found),
        divergence=_total(row.divergence for row in found),
    )


def _total(parts: Iterator[Divergence]) -> Divergence:
    total = Divergence(0.0, 0)
    for part in parts:
        total = _add(total, part)
    return total


def _add(one: Divergence, other: Divergence) -> Divergence:
    return Divergence(one.total + other.total, one.positions + other.positions)
