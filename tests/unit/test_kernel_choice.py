"""Who chooses implementations of kernels, and what is refused before anything is loaded."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockdiff.checkpoint.load import require_device
from blockdiff.cli import main as program
from blockdiff.cli.doctor import check_kernels, examine
from blockdiff.embedded.checks import guarded
from blockdiff.errors import ConfigError
from blockdiff.kernel_choice import INTERPRET, implementation_of, use_kernels, why_no_triton
from blockdiff.parallel import follower, load
from blockdiff.parallel.settings import ParallelSettings
from blockdiff.serving.settings import read_settings
from blockdiff_kernels.implementation import (
    OPS,
    VARIABLE,
    current_choices,
    parse_choices,
    set_choices,
    spell_choices,
    wanted_for,
)
from perf.command import run_command

ROOT = Path(__file__).resolve().parents[2]
DEMO = str(ROOT / "demo" / "checkpoint")
KERNELS = ROOT / "docs" / "kernels.md"
COMMANDS = {
    "generate": ["--prompt", "x"],
    "logits": ["--phase", "prefill", "--input-ids", "1", "--out", "never.safetensors"],
    "eval": [],
    "serve": ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"],
}


@pytest.fixture(autouse=True)
def _own_choices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VARIABLE, raising=False)
    set_choices(None)
    yield
    set_choices(None)


@pytest.mark.parametrize(
    ("text", "moe", "head"),
    [
        ("auto", "cpu", "cpu"),
        ("auto,moe=reference", "reference", "cpu"),
        ("triton,moe=auto", "cpu", "triton"),
        ("head=reference,triton", "triton", "reference"),
        ("moe=auto,triton,head=cpu", "cpu", "cpu"),
    ],
)
def test_the_part_without_an_op_is_for_the_rest(text: str, moe: str, head: str) -> None:
    set_choices(parse_choices(text))
    assert [str(wanted_for(op, "cpu")) for op in ("moe", "head")] == [moe, head]
    assert parse_choices(spell_choices(current_choices())) == current_choices()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fast", "one of auto, reference, cpu, triton"),
        ("moo=cpu", "one of attention,"),
        ("=reference", "no such op"),
        (",", "no such implementation"),
        (" ", "empty"),
        ("cpu,triton", "'triton': a second choice for the ops that are not named"),
        ("auto,auto", "a second choice"),
        ("moe=cpu,moe=triton", "'moe=triton': a second choice for moe"),
        ("auto,head=triton", f"{INTERPRET}=1"),
    ],
)
def test_what_cannot_run_is_refused_at_the_start(
    command: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv(INTERPRET, "0")
    monkeypatch.delattr("blockdiff.cli.serve.find_installation")
    words = [command, "--model", DEMO, "--kernels", text, *COMMANDS[command]]
    assert program.run(words) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("blockdiff: kernels") and said in last
    assert not current_choices()


@pytest.mark.parametrize("device", ["tpu", "", "cudax"])
@pytest.mark.parametrize("command", ["generate", "logits", "eval"])
def test_no_kernels_are_blamed_for_an_unknown_device(
    command: str, device: str, capsys: Any
) -> None:
    words = [command, "--model", DEMO, "--device", device, *COMMANDS[command]]
    assert program.run(words) == 2
    assert f"device is {device!r}; it must be cpu or cuda" in capsys.readouterr().err


def test_variable_is_checked_where_no_flag_is(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv(VARIABLE, "slow")
    assert program.run(["generate", "--model", DEMO, "--prompt", "x"]) == 2
    assert f"{VARIABLE}: 'slow'" in capsys.readouterr().err
    assert guarded("kernels", check_kernels).level == "fail"
    monkeypatch.setenv(VARIABLE, "norm=reference")
    found = check_kernels()
    assert found.level == "ok" and found.detail.startswith("norm=reference: on cpu: ")


def test_doctor_says_what_a_choice_comes_to(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv(INTERPRET, "0")
    assert program.run(["doctor", "--kernels", "fast"]) == 2
    assert "kernels: 'fast': no such implementation" in capsys.readouterr().err
    findings = examine(None, "float32", "head=triton", "127.0.0.1", (0, 0, 0))
    (found,) = (finding for finding in findings if finding.name == "kernels")
    assert found.level == "fail" and f"{INTERPRET}=1" in found.detail
    assert not current_choices(), "what cannot run was chosen"
    found = check_kernels("reference,moe=cpu")
    assert "on cpu: cpu for moe, reference for the rest" in found.detail


def test_documentation_and_doctor_name_the_same_ops_of_the_cpu() -> None:
    table = KERNELS.read_text("utf-8").split("## On a CPU")[1].split("| op |")[1]
    rows = [line.split("|")[1].strip(" `") for line in table.splitlines() if line.startswith("| `")]
    assert sorted(rows) == [op for op in OPS if str(implementation_of(op, "cpu")) == "cpu"]


def test_triton_needs_its_package_and_goes_with_no_deterministic_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert why_no_triton("cpu") is None
    with pytest.raises(ConfigError, match="does not go with deterministic"):
        use_kernels("triton", "cpu", deterministic=True)
    monkeypatch.setattr("blockdiff.kernel_choice.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'blockdiff\[kernels\]'"):
        use_kernels("auto", "cuda")
    use_kernels("auto", "cpu")


def test_server_reads_parameter_and_variable() -> None:
    given = {"parameters": {"kernels": {"string_value": "head=reference"}}}
    environment = {"BLOCKDIFF_MODEL": DEMO, VARIABLE: "cpu"}
    assert read_settings(given, environment).kernels == "head=reference"
    assert read_settings({}, environment).kernels == "cpu"
    with pytest.raises(ConfigError, match=f"{VARIABLE}: 'x'"):
        read_settings({}, {**environment, VARIABLE: "x"})


class _Stopped(Exception):
    pass


def test_every_rank_gets_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []

    def ranks(group: Any, orders: dict[str, Any], *rest: Any) -> None:
        given.append(orders)
        raise _Stopped

    def load_model(*arguments: Any, **named: Any) -> None:
        raise _Stopped

    monkeypatch.setattr("torch.set_num_threads", lambda count: None)
    monkeypatch.setattr(load, "Ranks", ranks)
    use_kernels("cpu,head=reference", "cpu")
    with pytest.raises(_Stopped):
        load.load_shared(Path(DEMO), "cpu", "float32", ParallelSettings(2, threads=2))
    set_choices(None)
    monkeypatch.setattr(follower, "load_model", load_model)
    own = {"rank": 1, "size": 2, "connection": 0, "device": "cpu"}
    orders = follower.Orders(**given[0], **own, meeting_file="", timeout_seconds=1.0)
    with pytest.raises(_Stopped):
        follower.run(orders, None)  # type: ignore[arg-type]
    assert [str(wanted_for(op, "cpu")) for op in ("moe", "head")] == ["cpu", "reference"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--cuda-graphs: needs a GPU"),
        (["--device", "cpu"], "--cuda-graphs: needs a GPU"),
        (["--device", "cuda", "--tensor-parallel", "2"], "not together with --tensor-parallel"),
        (["--device", "cuda", "--kernels", "moe=reference"], "not all are Triton's (moe)"),
    ],
)
def test_graphs_that_cannot_be_are_refused_at_the_start(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.delattr("blockdiff.cli.serve.find_installation")
    assert program.run(["serve", "--model", DEMO, "--cuda-graphs", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"), [("bogus", "no such implementation"), ("moe=triton", f"{INTERPRET}=1")]
)
def test_models_and_benchmarks_mind_the_variable(
    text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    monkeypatch.setenv(INTERPRET, "0")
    with pytest.raises(ConfigError, match=f"{VARIABLE}.*{said}"):
        require_device("cpu")
    with pytest.raises(SystemExit, match=f"error: {VARIABLE}.*{said}"):
        run_command("nothing", lambda: None)


def test_gpus_that_are_not_there_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "reference")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert require_device("cuda:1").index == 1
    with pytest.raises(ConfigError, match="cpu or cuda:0 to cuda:1"):
        require_device("cuda:2")
