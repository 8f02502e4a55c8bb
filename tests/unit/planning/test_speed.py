"""The ceiling on speed: numbers of the 35B model computed elsewhere, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdiff.cli import main as program
from blockdiff.planning import read_model
from blockdiff.planning.speed.devices import DEVICES
from blockdiff.planning.speed.forecast import Question, forecast
from blockdiff.planning.speed.routing import Routing, expected_distinct
from blockdiff.planning.speed.weights import Kept, WeightFormat, weight_format

CONFIGS = Path(__file__).parent / "configs"
CLOVER = CONFIGS / "clover-35b-a3b.json"
ROOT = Path(__file__).resolve().parents[3]
README_COMMAND = (
    "blockdiff plan --model tests/unit/planning/configs/clover-35b-a3b.json --speed --gpu h200"
)


def _asked(**changes: Any) -> Question:
    given = {"block_length": 32, "context": 2048, "state_bytes": 2.0, **changes}
    weights = given.pop("weights", weight_format("bf16"))
    return Question(read_model(CLOVER).shape, weights, DEVICES["h200"], **given)


# Of a roofline made independently: bfloat16 states that are read and not written, uniform routing.
@pytest.mark.parametrize(
    ("batch", "gigabytes", "teraflops", "milliseconds", "commit", "alone", "break_even"),
    [
        (1, 45.3, 0.20, 10.54, 3.54, 1.39, 7.6),
        (4, 68.5, 0.81, 15.95, 0.69, 2.76, 5.8),
        (16, 73.7, 3.24, 18.48, 2.82, 7.17, 2.6),
        (64, 89.8, 12.97, 28.93, 11.30, 15.14, 1.9),
    ],
)
def test_the_35b_model(
    batch: int,
    gigabytes: float,
    teraflops: float,
    milliseconds: float,
    commit: float,
    alone: float,
    break_even: float,
) -> None:
    found = forecast(_asked(), batch)
    assert found.cost.bytes / 1e9 == pytest.approx(gigabytes, rel=0.01)
    assert found.cost.flops / 1e12 == pytest.approx(teraflops, rel=0.02)
    assert found.forward_seconds * 1e3 == pytest.approx(milliseconds, rel=0.005)
    assert found.commit_seconds * 1e3 == pytest.approx(commit, rel=0.01)
    assert found.autoregressive_seconds * 1e3 == pytest.approx(alone, rel=0.005)
    assert found.break_even == pytest.approx(break_even, rel=0.01)
    assert found.tokens_per_second(4) == pytest.approx(4e3 * batch / milliseconds, rel=0.005)


@pytest.mark.parametrize(
    ("changes", "milliseconds"),
    [
        ({"weights": WeightFormat(experts=Kept(8))}, (5.76, 8.59, 10.98)),
        ({"weights": WeightFormat(experts=Kept(4))}, (3.37, 4.91, 7.24)),
        ({"context": 32768}, (10.75, 16.77, 21.74)),
        ({"state_bytes": 4.0}, (10.55, 15.98, 18.59)),
        ({"routing": Routing(diversity=0.25)}, (4.34, 10.78, 18.22)),
        ({"routing": Routing(coreset=32)}, (2.86, 7.43, 16.71)),
        ({"routing": Routing(coreset=128)}, (7.52, 14.70, 18.47)),
    ],
)
def test_variants_of_the_35b_model(
    changes: dict[str, Any], milliseconds: tuple[float, ...]
) -> None:
    asked = _asked(**changes)
    found = [forecast(asked, batch).forward_seconds * 1e3 for batch in (1, 4, 16)]
    assert found == pytest.approx(milliseconds, rel=0.01)


def test_distinct_experts_are_those_of_draws() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(200, 32, 256, generator=generator).topk(8, dim=2).indices
    found = torch.stack([one.unique().numel() * torch.ones(()) for one in draws.flatten(1)])
    assert float(found.mean()) == pytest.approx(expected_distinct(256, 8, 32), rel=0.01)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_every_family_reads_its_weights_once(path: Path) -> None:
    """With all experts in use and little else, a forward moves the weights it has."""
    model = read_model(path)
    asked = Question(model.shape, weight_format("bf16"), DEVICES["h100"], 1, 0, state_bytes=0.0)
    one = forecast(asked, 4096)
    small = forecast(asked, 4095)
    weights = one.cost.bytes - 4096 * (one.cost.bytes - small.cost.bytes)
    looked_up = 0 if model.shape.has_tied_head else model.parts["embedding"]
    # the twin of a tied head is read once more for the signal, which one token a block leaves out
    conditioning = model.parts.get("self-conditioning", 0)
    assert weights / 2 == pytest.approx(model.parameters - looked_up - conditioning, rel=0.01)
    assert all(math.isfinite(k.cost.bytes) and k.cost.flops >= 0 for k in one.kernels)


def test_quantised_weights_are_read_with_their_scales() -> None:
    found = [forecast(_asked(weights=weight_format(d)), 1) for d in ("bf16", "int8", "int4")]
    sizes = [one.cost.bytes for one in found]
    assert 0.50 < sizes[1] / sizes[0] < 0.53 and 0.28 < sizes[2] / sizes[0] < 0.31


def test_json_holds_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", str(CLOVER), "--speed", "--format", "json", "--batches", "2"]
    words += ["--bandwidth", "4.3TB/s", "--flops", "790TFLOP/s", "--state-dtype", "bf16"]
    assert program.run(words) == 0
    shown = json.loads(capsys.readouterr().out)
    (found,) = shown["batches"]
    expected = forecast(_asked(), 2)
    assert found["forward_seconds"] == expected.forward_seconds
    assert sum(k["seconds"] for k in found["kernels"]) == pytest.approx(found["forward_seconds"])
    assert found["tokens_per_second"]["8"] == expected.tokens_per_second(8)
    assert found["with_commits"]["8"] < found["tokens_per_second"]["8"]
    assert "not measured" in shown["note"] and shown["source"] == "given"
    assert program.run([word for word in words if word not in ("--format", "json")]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert head == "clover_moe, weights in bf16, at the rates given: 4.3 TB/s, 790 TFLOP/s"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--speed", "--headroom", "0.1"], "--headroom: not with --speed"),
        (["--device-memory", "80GiB", "--coreset", "8"], "--coreset: only with --speed"),
        ([], "--device-memory: missing"),
        (["--speed", "--gpu", "h300"], "--gpu 'h300': must be one of h200,"),
        (["--speed", "--flops", "790TFLOP/s"], "--bandwidth, --flops: give both of them"),
        (["--speed", "--bandwidth", "4.3TB", "--flops", "1TFLOP/s"], "--bandwidth '4.3TB': must"),
        (["--speed", "--batches", "1,x"], "numbers from 1 to 4096"),
        (["--speed", "--batches", "9" * 5000], "numbers from 1 to 4096"),
        (["--speed", "--batches", "\u0663"], "numbers from 1 to 4096"),
        (["--speed", "--gpu", "h100", "--flops", "1TFLOP/s"], "--gpu: not with --bandwidth"),
        (["--speed", "--coreset", "4"], "a row chooses 8 experts"),
        (["--speed", "--coreset", "257"], "must be from 8 to 256"),
        (["--speed", "--context", "1" + "0" * 24], "--context 1000"),
        (["--speed", "--block-length", "1" + "0" * 24], "--block-length 1000"),
        (["--speed", "--png", "/tmp"], "--png /tmp: must end in .png"),
        (["--speed", "--dtype", "fp32"], "take bf16 or smaller"),
        (["--speed", "--state-dtype", "fp8"], "allowed are fp32 and bf16"),
        (
            ["--speed", "--png", "/nowhere/x.png"],
            "--png /nowhere/x.png: must be a file in a folder that exists",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(words: list[str], said: str, capsys: Any) -> None:
    assert program.run(["plan", "--model", str(CLOVER), *words]) == 2
    assert said in capsys.readouterr().err


def test_states_of_a_model_without_them_are_refused(capsys: Any) -> None:
    words = ["plan", "--model", str(CONFIGS / "sdar-8b.json"), "--speed", "--state-dtype", "bf16"]
    assert program.run(words) == 2
    assert "--state-dtype: this model has no recurrent states" in capsys.readouterr().err


def test_picture_is_drawn(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "speed.png"
    words = ["--speed", "--png", str(path), "--batches", "1,2"]
    assert program.run(["plan", "--model", str(CONFIGS / "sdar-8b.json"), *words]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_readme_shows_what_the_command_prints(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    readme = (ROOT / "README.md").read_text("utf-8")
    assert f"\n    {README_COMMAND}\n" in readme
    assert program.run(README_COMMAND.split()[1:]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert f"\n    {line.rstrip()}\n" in readme
