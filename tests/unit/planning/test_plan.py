"""Plans against published and measured numbers. Run: pytest tests/unit/planning"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blockdiff.cli.main import run
from blockdiff.cli.plan_advice import DEFAULT_SLOTS
from blockdiff.cli.plan_bar import memory_bar
from blockdiff.config import read_json
from blockdiff.errors import ConfigError
from blockdiff.planning import Plan, Setup, make_plan, needs, read_model
from blockdiff.planning import model as planning_model
from blockdiff.planning.quantised import QUANTISED_PARTS
from blockdiff.planning.units import GIB

CONFIG = Path(__file__).parent / "configs" / "clover-35b-a3b.json"
BIG = read_model(CONFIG)
CARD = Setup(device_memory=80 * GIB)


def plan_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code = run(["plan", *(str(word) for word in words), "--format", "json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found: dict[str, Any] = json.loads(captured.out)
    return found


@pytest.mark.parametrize(("dtype", "gigabytes"), [("bf16", 70), ("int8", 35)])
def test_weights_of_the_35b_model_as_published(dtype: str, gigabytes: float) -> None:
    assert needs.weight_bytes(BIG, dtype, 1) / 1e9 == pytest.approx(gigabytes, rel=0.1)


def test_int4_projections_of_the_35b_model_as_published() -> None:
    parts = needs.weight_parts(BIG, "int4")
    projections = sum(size for name, size in parts.items() if name in QUANTISED_PARTS)
    assert projections / 1e9 == pytest.approx(18, rel=0.05)
    # embeddings, output head and what is small stay in bf16
    assert sum(parts.values()) / 1e9 < 20


@pytest.mark.parametrize("headroom", [0.2, 0.25, 0.3])
def test_one_card_of_80_is_too_small_in_bf16_and_two_are_enough(headroom: float) -> None:
    small = replace(CARD, slots=1, context=1024, headroom=headroom)
    found = make_plan(BIG, small)
    assert not found.fits and found.fitting_slots == found.fitting_context == 0
    assert "--tensor-parallel 2" in found.changes and "--dtype int8" in found.changes
    two = replace(CARD, tensor_parallel=2, context=131072, headroom=headroom)
    assert make_plan(BIG, two).fits
    assert make_plan(BIG, replace(small, dtype="int8")).fits
    forty = replace(small, dtype="int4", device_memory=40 * GIB)
    assert make_plan(BIG, forty).fits


PUBLISHED = {
    "clover-35b-a3b": ("Clover-35B-A3B", 35e9, 3.0e9),
    "llada2.0-mini": ("LLaDA2.0-mini", 16e9, 1.1e9),
    "sdar-8b": ("SDAR-8B", 8.2e9, 7.6e9),
    "sdar-30b-a3b": ("SDAR-30B-A3B", 30.5e9, 3.0e9),
    "diffusion-gemma-26b-a4b": ("DiffusionGemma 26B-A4B", 26e9, 3.8e9),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_names(name: str) -> None:
    found = read_model(CONFIG.with_name(f"{name}.json"))
    _, total, active = PUBLISHED[name]
    assert found.parameters == pytest.approx(total, rel=0.03)
    assert found.active_parameters == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize(("name", "published"), [("llada2.0-mini", 1.4e9), ("sdar-30b-a3b", 3.3e9)])
def test_active_parameters_as_authors_count_them(name: str, published: float) -> None:
    found = read_model(CONFIG.with_name(f"{name}.json"))
    counted = found.active_parameters + found.parts["embedding"]
    assert counted == pytest.approx(published, rel=0.03)


def test_the_page_shows_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "planning.md").read_text("utf-8")
    for name, (title, _, _) in PUBLISHED.items():
        flags = ("--device-memory", "80GiB", "--max-context", "32768")
        found = plan_json(capsys, "--model", CONFIG.with_name(f"{name}.json"), *flags)
        row = (
            f"| {title} | {found['parameters'] / 1e9:.2f} B "
            f"| {found['active_parameters'] / 1e9:.2f} B "
            f"| {found['weight_bytes_all_devices'] / 1e9:.1f} "
            f"| {found['kv_bytes_per_token_per_device'] / 1024:.0f} "
            f"| {found['state_bytes_per_request_per_device'] / 2**20:.1f} "
            f"| {found['bytes_per_device']['total'] / GIB:.1f} "
            f"| {found['fitting_slots'] or 'none'} |"
        )
        assert row in page


def test_sliding_layers_keep_their_window_only() -> None:
    shape = read_model(CONFIG.with_name("diffusion-gemma-26b-a4b.json")).shape
    windows, token = 25 * 1023 * 2 * 8 * 256 * 2, 5 * 2 * 2 * 512 * 2
    # full layers keep whole pages of 256 positions
    assert needs.kv_bytes(shape, "bf16", 1000) == 1000 * 25 * 2 * 8 * 256 * 2 + 1024 * token
    assert needs.kv_bytes(shape, "bf16", 100_000) == windows + 391 * 256 * token
    assert needs.kv_bytes_per_token(shape, "bf16") == token
    assert needs.state_bytes(shape, "bf16") == 256 * 2816 * 2


def test_a_canvas_has_one_length(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--model", str(CONFIG.with_name("diffusion-gemma-26b-a4b.json"))]
    assert run([*words, "--device-memory", "80GiB", "--block-length", "32"]) == 2
    assert "block-length: 32 must be 256" in capsys.readouterr().err


@pytest.mark.parametrize("memory", [4, 60, 80, 400])
@pytest.mark.parametrize("dtype", ["bf16", "int4"])
def test_the_bar_is_to_scale(memory: int, dtype: str) -> None:
    made = make_plan(BIG, replace(CARD, device_memory=memory * GIB, dtype=dtype))
    bar, legend = (line.plain for line in memory_bar(made))
    cells = bar.removeprefix("[").replace("|", "").replace("]", "")
    assert len(cells) == 64 and "headroom" in legend
    cell = max(made.setup.device_memory, made.demand.total) / 64
    assert abs(cells.count("W") * cell - made.demand.weights) <= cell
    assert abs(cells.count(".") * cell - max(0, memory * GIB - made.demand.total)) <= cell
    assert abs((bar.index("|") - 1) * cell - made.setup.usable) <= cell


def test_caches_of_the_35b_model() -> None:
    found = make_plan(BIG, CARD)
    assert found.kv_bytes_per_token == 2 * 10 * 2 * 256 * 2
    states, tails = 30 * 32 * 128 * 128 * 4, 30 * 3 * 8192 * 2
    assert found.state_bytes_per_request == states + tails
    # and the page that stays empty
    assert found.demand.kv_cache == (8 * 4096 + 32) * found.kv_bytes_per_token
    assert found.demand.kept_states == 2 * 8 * (states + tails)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_what_fits_is_the_most_that_fits(dtype: str) -> None:
    setup = replace(CARD, dtype=dtype, context=100_000)
    found = make_plan(BIG, setup)
    assert make_plan(BIG, replace(setup, slots=found.fitting_slots)).fits
    assert not make_plan(BIG, replace(setup, slots=found.fitting_slots + 1)).fits
    many = replace(setup, slots=64)
    longest = make_plan(BIG, many).fitting_context
    assert make_plan(BIG, replace(many, context=longest)).fits
    assert not make_plan(BIG, replace(many, context=longest + 1)).fits


def change(setup: Setup, flags: str) -> Setup:
    name, value = flags.split()
    if name == "--dtype":
        return replace(setup, dtype=value)
    fields = {"--max-batch-size": "slots", "--max-context": "context"}
    return replace(setup, **{fields.get(name, "tensor_parallel"): int(value)})


@pytest.mark.parametrize(
    "setup",
    [
        CARD,
        replace(CARD, dtype="int8", slots=64, context=131072),
        replace(CARD, dtype="fp32", tensor_parallel=2),
        replace(CARD, dtype="fp8", slots=2, context=131072, device_memory=48 * GIB),
    ],
)
def test_each_change_that_is_named_makes_it_fit(setup: Setup) -> None:
    found = make_plan(BIG, setup)
    assert not found.fits and found.changes
    for flags in found.changes:
        assert make_plan(BIG, change(setup, flags)).fits, flags


def test_no_change_is_named_when_none_helps() -> None:
    found = make_plan(BIG, replace(CARD, device_memory=GIB))
    assert not found.fits and found.changes == ()


def grow(found: Plan, **fields: int) -> int:
    return make_plan(BIG, replace(found.setup, **fields)).demand.total


def test_more_of_anything_needs_more() -> None:
    found = make_plan(BIG, CARD)
    for fields in ({"slots": 9}, {"context": 5000}, {"block_length": 64}, {"prefill_rows": 1024}):
        assert grow(found, **fields) > found.demand.total, fields


def test_the_command_prints_json_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan_json(capsys, "--model", CONFIG, "--device-memory", "80GiB")
    assert found["fits"] is False and found["counted_in"] == "config"
    assert found["setup"]["context"] == 131072 and found["setup"]["slots"] == DEFAULT_SLOTS
    assert found["setup"]["block_length"] == 32
    amounts = dict(found["bytes_per_device"])
    shorter = min(amounts["activations"], amounts["sampling"])
    assert amounts.pop("total") == sum(amounts.values()) - shorter
    assert sum(found["parts"].values()) == found["weight_bytes_all_devices"]
    words = ["plan", "--model", str(CONFIG), "--device-memory", "80GiB", "--tensor-parallel", "2"]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "It fits." in out and "34.66 B parameters" in out and "32.42" in out
    assert "forecast" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--device-memory", "80"], "device-memory"),
        (["--device-memory", "0GiB"], "device-memory"),
        (["--device-memory", "lots"], "device-memory"),
        (["--device-memory", "80GiB", "--dtype", "int3"], "dtype"),
        (["--device-memory", "80GiB", "--tensor-parallel", "3"], "tensor-parallel"),
        (["--device-memory", "80GiB", "--max-context", "200000"], "max-context"),
        (["--device-memory", "80GiB", "--max-batch-size", "100000"], "max-batch-size"),
        (["--device-memory", "80GiB", "--block-length", "64", "--max-context", "8"], "block"),
        (["--device-memory", "80GiB", "--headroom", "2"], "headroom"),
        ([], "device-memory"),
    ],
)
def test_bad_flags_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(["plan", "--model", str(CONFIG), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


def test_bad_models_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "config.json"
    other.write_text(json.dumps({**read_json(CONFIG), "model_type": "bert"}))
    for path, said in ((other, "bert"), (tmp_path / "nowhere", "not found")):
        assert run(["plan", "--model", str(path), "--device-memory", "1GB"]) == 2
        error = capsys.readouterr().err
        assert said in error and len(error.splitlines()) == 1


def test_the_readme_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).resolve().parents[3]
    readme = (root / "README.md").read_text("utf-8")
    command = (
        f"blockdiff plan --model {CONFIG.relative_to(root)} "
        "--device-memory 80GiB --max-context 32768"
    )
    assert f"\n    {command}\n" in readme
    words = ["--device-memory", "80GiB", "--max-context", "32768"]
    assert run(["plan", "--model", str(CONFIG), *words]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert f"\n    {line.rstrip()}\n" in readme
    for dtype, devices in (("bf16", 1), ("bf16", 2), ("int8", 1), ("int4", 1)):
        flags = ("--dtype", dtype, "--tensor-parallel", devices)
        found = plan_json(capsys, "--model", CONFIG, *words, *flags)
        row = (
            f"| {dtype} | {devices} x 80 GiB | {found['weight_bytes_all_devices'] / 1e9:.1f} "
            f"| {found['bytes_per_device']['total'] / GIB:.1f} "
            f"| {found['fitting_slots'] or 'none'} |"
        )
        assert row in readme


def test_a_config_of_another_kind_is_not_guessed_at(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        model_type = "dense"

    monkeypatch.setattr(planning_model, "parse_config", lambda values: Other())
    with pytest.raises(ConfigError, match="plan does not know model_type 'dense'"):
        read_model(CONFIG)


def test_a_plan_needs_no_torch() -> None:
    program = (
        "import sys; from blockdiff.cli.main import run; "
        f"code = run(['plan', '--model', {str(CONFIG)!r}, '--device-memory', '80GiB']); "
        "sys.exit(9 if 'torch' in sys.modules else code)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
