"""What a plan says in sentences, and the spellings of dtypes. Run: pytest tests/unit/planning"""

from dataclasses import replace
from pathlib import Path

import pytest

from blockdiff.cli.doctor import check_model
from blockdiff.cli.main import run
from blockdiff.cli.plan_advice import notes, serve_command, verdict
from blockdiff.planning import Setup, make_plan, read_model
from blockdiff.planning.units import GIB

DEMO = Path(__file__).resolve().parents[3] / "demo" / "checkpoint"
CONFIG = Path(__file__).parent / "configs" / "clover-35b-a3b.json"
BIG, SMALL = read_model(CONFIG), read_model(DEMO)
HOST = Setup(device_memory=80 * GIB, device="cpu")
FITTING = Setup(device_memory=4 * GIB, device="cpu", context=1024, block_length=16)


@pytest.mark.parametrize(("short", "full"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_plan_takes_both_spellings(
    capsys: pytest.CaptureFixture[str], short: str, full: str
) -> None:
    said = []
    for name in (short, full):
        words = ["plan", "--model", str(CONFIG), "--device-memory", "80GiB", "--dtype", name]
        assert run([*words, "--format", "json"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and f'"dtype": "{short}"' in said[0]


@pytest.mark.parametrize(("short", "full"), [("bf16", "bfloat16"), ("fp32", "float32")])
def test_commands_that_load_take_both_spellings(tmp_path: Path, short: str, full: str) -> None:
    files = []
    for name in (short, full):
        files.append(tmp_path / name)
        words = ["logits", "--model", str(DEMO), "--out", str(files[-1]), "--dtype", name]
        assert run([*words, "--phase", "prefill", "--input-ids", "5,6,7"]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    "words",
    [
        ["generate", "--prompt", "sort 3 1 2", "--max-tokens", "4"],
        ["eval", "--limit", "1", "--thresholds", "0.9", "--steps", "", "--no-autoregressive"],
    ],
)
def test_generate_and_eval_take_bf16(words: list[str]) -> None:
    assert run([*words, "--model", str(DEMO), "--dtype", "bf16"]) == 0


def test_doctor_takes_bf16(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        "blockdiff.cli.doctor.examine", lambda _, dtype, *__: asked.append(dtype) or []
    )
    monkeypatch.setattr("blockdiff.cli.doctor.show_table", lambda _: None)
    run(["doctor", "--model", str(DEMO), "--dtype", "bf16"])
    assert asked == ["bfloat16"]
    assert "fail" not in {finding.level for finding in check_model(DEMO, "bfloat16")[:1]}


def test_serve_takes_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def note(options: object, _: object) -> None:
        asked.append(getattr(options, "dtype", None))
        raise KeyboardInterrupt

    monkeypatch.setattr("blockdiff.cli.serve._check_first", note)
    for words in (["--dtype", "bf16"], []):
        run(["serve", "--model", str(DEMO), *words])
    assert asked == ["bfloat16", None]


def test_a_dtype_that_is_not_known_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["logits", "--model", str(DEMO), "--out", str(tmp_path / "x"), "--phase", "prefill"]
    assert run([*words, "--input-ids", "5", "--dtype", "bf32"]) == 2
    assert "dtype is 'bf32'" in capsys.readouterr().err


def test_the_serve_command_is_named_for_a_folder_that_fits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plan", "--model", str(DEMO), "--device-memory", "4GiB", "--device", "cpu"]
    assert run(words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"serve it with: blockdiff serve --model {DEMO} --dtype bfloat16"
    assert run([*words, "--dtype", "float32"]) == 0
    assert "serve it with" not in capsys.readouterr().out
    assert run([*words, "--max-batch-size", "2", "--max-context", "512"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("--dtype bfloat16 --slots 2 --max-context 512")


def test_no_serve_command_without_weights_or_room() -> None:
    assert serve_command(make_plan(SMALL, FITTING), DEMO) is not None
    assert serve_command(make_plan(SMALL, replace(FITTING, device_memory=1000)), DEMO) is None
    assert serve_command(make_plan(BIG, replace(HOST, device_memory=900 * GIB)), CONFIG) is None


def test_processes_that_share_one_memory_are_no_advice() -> None:
    changes = {
        device: make_plan(BIG, replace(HOST, device=device)).changes for device in ("cpu", "cuda")
    }
    assert not any("tensor-parallel" in change for change in changes["cpu"])
    assert any("tensor-parallel" in change for change in changes["cuda"])


def test_weights_that_are_too_large_by_themselves_are_said_to_be() -> None:
    made = make_plan(BIG, replace(HOST, device_memory=8 * GIB))
    said = " ".join(verdict(made))
    assert f"weights alone need {made.demand.weights / GIB:.2f} GiB, 6.00 GiB are usable" in said
    assert "combine" not in said and "devices" not in said
    # what is left beside the weights is not enough for one slot of anything
    usable = make_plan(SMALL, FITTING).demand.weights + 1000
    tight = make_plan(SMALL, replace(FITTING, device_memory=usable, headroom=0))
    assert "combine" in " ".join(verdict(tight))


def test_numbers_agree_with_their_nouns() -> None:
    one = make_plan(SMALL, replace(FITTING, slots=1))
    assert "With 1 slot: context" in " ".join(verdict(one))
    assert "With 2 slots: context" in " ".join(verdict(make_plan(SMALL, replace(FITTING, slots=2))))


def test_quantised_weights_are_not_called_a_forecast() -> None:
    setup = replace(FITTING, dtype="int4")
    assert "not measured on a GPU" not in " ".join(notes(make_plan(SMALL, setup)))
    found = " ".join(notes(make_plan(SMALL, replace(setup, device="cuda"))))
    assert "int4 is not measured on a GPU" in found and "forecast" not in found
