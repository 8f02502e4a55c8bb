"""``eval --compare``: agreement, divergence, memory, refusals. Run: pytest tests/engine"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdiff.checkpoint import load_model
from blockdiff.cli.main import run
from blockdiff.core import Phase
from blockdiff.evaluation.divergence import measure_divergence
from blockdiff.models.base import RoundBatch, Segment

from .checkpoint import make_checkpoint

GOLDEN = Path(__file__).parents[1] / "golden" / "fixtures"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_checkpoint(tmp_path_factory.mktemp("checkpoint"))
    lines = [
        {"task": task, "messages": [{"role": "user", "content": text}], "expected": "?"}
        for task, text in (("sort", "3 1"), ("sort", "2 9"), ("upper", "x"))
    ]
    (folder / "eval_prompts.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return folder


def compare(
    capsys: pytest.CaptureFixture[str], model: Path, reference: Path, *flags: str
) -> tuple[int, str, str]:
    words = ["eval", "--model", str(model), "--compare", str(reference), "--max-tokens", "12"]
    code = run([*words, *flags])
    got = capsys.readouterr()
    return code, got.out, got.err


def test_a_model_is_its_own_equal(
    capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "r.json"
    flags = ["--format", "json", "--out", str(out)]
    code, text, err = compare(capsys, checkpoint, checkpoint, *flags)
    assert code == 0, err
    result: dict[str, Any] = json.loads(text)
    assert result == json.loads(out.read_text())
    assert [row["task"] for row in result["tasks"]] == ["sort", "upper", "all"]
    assert all(row["token_agreement"] == 1 and row["mean_kl"] == 0 for row in result["tasks"])
    assert result["weight_bytes"]["model"] == result["weight_bytes"]["reference"]
    assert result["prompts"] == 3 and result["setting"] == "threshold 0.9"


def test_a_quantised_model_is_smaller_and_differs(
    capsys: pytest.CaptureFixture[str], checkpoint: Path
) -> None:
    flags = ["--dtype", "int8", "--format", "json", "--steps", "4"]
    code, text, err = compare(capsys, checkpoint, checkpoint, *flags)
    assert code == 0, err
    result = json.loads(text)
    assert result["setting"] == "steps 4"
    assert result["weight_bytes"]["model"] < 0.8 * result["weight_bytes"]["reference"]
    total = result["tasks"][-1]
    assert 0 < total["mean_kl"] < 0.5 and 0 < total["token_agreement"] <= 1
    code, text, err = compare(capsys, checkpoint, checkpoint, "--dtype", "int8")
    assert code == 0, err
    for part in ("agreement", "mean KL", "weights in memory", "sort", "all"):
        assert part in text


def test_refusals(capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path) -> None:
    other = shutil.copytree(checkpoint, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "block_size": 4}))
    for reference, flags, part in (
        (checkpoint, ["--thresholds", "0.5,0.9"], "a comparison has one setting"),
        (checkpoint, ["--png", "x.png"], "a comparison has no picture"),
        (other, [], "compare: block_length is 4, but the model's is 8"),
        (tmp_path / "none", [], "none: not found"),
    ):
        code, out, err = compare(capsys, checkpoint, reference, *flags)
        assert (code, out) == (2, "") and part in err and err.count("\n") == 1, err


@pytest.mark.parametrize("case", ["clover_moe/layers4_block8", "sdar/block4"])
def test_divergence_is_that_of_blocks_predicted_one_by_one(case: str) -> None:
    """Every block again from an empty cache, its probabilities summed row by row."""
    reference, model = load_model(GOLDEN / case), load_model(GOLDEN / case)
    model.final_norm.mul_(1.2)
    info, prompt, answer = reference.info, [5, 9, 7, 11, 6], list(range(20, 37))
    tokens, length = [*prompt, *answer], reference.info.block_length
    start = len(prompt) if info.block_anchor == "prompt_end" else len(prompt) // length * length
    total, count = 0.0, 0
    for first in range(start, len(tokens), length):
        known = prompt[first:] if first < len(prompt) else []
        canvas = [*known, *[info.mask_token_id] * (length - len(known))]
        rows = range(len(known), min(length, len(tokens) - first))
        p, q = (_probabilities(own, tokens[:first], canvas, rows) for own in (reference, model))
        for wanted, got in zip(p.tolist(), q.tolist(), strict=True):
            total += sum(
                a * (torch.tensor(a / b).log().item()) for a, b in zip(wanted, got, strict=True)
            )
            count += 1
    found = measure_divergence(model, reference, prompt, answer)
    assert found.positions == count == len(answer)
    assert found.mean == pytest.approx(total / count, rel=1e-3) and found.mean > 0


def _probabilities(model: Any, context: list[int], canvas: list[int], rows: range) -> torch.Tensor:
    length = model.info.block_length
    caches = model.new_caches(1, len(context) + length)
    if context:
        segment = Segment(Phase.PREFILL, 0, 0, context, (), length)
        model.forward(RoundBatch.from_segments([segment]), caches)
    preview = Segment(Phase.PREVIEW, 0, len(context), canvas, rows, length)
    found: torch.Tensor = model.forward(RoundBatch.from_segments([preview]), caches)
    return found.softmax(-1)
