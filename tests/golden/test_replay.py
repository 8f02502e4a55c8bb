"""Golden ``generate`` entries that replay recorded draws. Run: pytest tests/golden"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdiff.cli.line_fields import check_fields, parse_line
from blockdiff.cli.main import run as run_command
from blockdiff.cli.recorded import RecordedTensors
from blockdiff.cli.replay import read_draws
from blockdiff.cli.request_lines import build_request
from blockdiff.core import Phase
from blockdiff.engine import Engine, EngineConfig
from blockdiff.engine import uniform as rounds
from blockdiff.errors import RequestError
from blockdiff.jobs import Job, Outcome, run_jobs
from blockdiff.models.base import BlockDiffusionModel, ModelCaches, RoundBatch

from . import cases

EVERY = [
    pytest.param(case, entry, id=f"{case}-{entry['name']}")
    for case in cases.CANVAS_CASES
    for entry in cases.entries(case)
    if entry["kind"] == "generate"
]


def run(
    model: BlockDiffusionModel,
    case: str,
    entries: Sequence[dict[str, Any]],
    slots: int,
    budget: int = 512,
) -> list[Outcome]:
    """Replays ``entries`` of ``case`` on its checkpoint, wherever that is loaded."""
    jobs = []
    for uid, entry in enumerate(entries):
        fields = check_fields(parse_line(cases.as_line(entry)))
        request = build_request(fields, uid, model.info, None)
        jobs.append(Job(request, fields.name, replay=fields.inputs))
    draws = read_draws(jobs, model.info, RecordedTensors(cases.FIXTURES / case))
    config = EngineConfig(max_slots=slots, max_context=256, prefill_token_budget=budget)
    return run_jobs(Engine(model, config, draws=draws), jobs)


def check(entry: dict[str, Any], outcome: Outcome) -> None:
    """Tokens and reason as the reference's, with no more forwards."""
    want, counts, reference = entry["expected"], outcome.forwards, entry["reference_forwards"]
    assert outcome.output_ids == want["token_ids"]
    assert str(outcome.final.finish_reason) == want["finish_reason"]
    steps = [block.denoise_steps for block in outcome.blocks]
    assert steps == reference["decoder_per_canvas"]
    # all commits ride along; prompts are encoded in the round of the first preview
    assert counts.commit == 0 and counts.preview == sum(steps)
    assert counts.prefill + counts.preview <= reference["total"]


class Recorder:
    """Notes what the engine sees and decides, step by step, of the one request that runs."""

    def __init__(self, model: BlockDiffusionModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = model
        self.canvas_in: list[list[int]] = []
        self.logits: list[Tensor] = []
        self.steps: list[tuple[list[bool], list[int], bool]] = []
        hidden, decide = self.model.hidden, rounds.decide_step

        def noting_hidden(batch: RoundBatch, caches: ModelCaches, **wanted: Any) -> Tensor:
            starts, phases = batch.segment_starts.tolist(), batch.phases.tolist()
            assert phases[-1] == Phase.PREVIEW
            self.canvas_in.append(batch.token_ids[starts[-2] :].tolist())
            rows = hidden(batch, caches, **wanted)
            self.logits.append(self.model.head(rows))
            return rows

        def noting_decide(*args: Any) -> Any:
            accepted, finished = decide(*args)
            self.steps.append((accepted[0].tolist(), args[2].best[0].tolist(), bool(finished[0])))
            return accepted, finished

        monkeypatch.setattr(self.model, "hidden", noting_hidden)
        monkeypatch.setattr(rounds, "decide_step", noting_decide)


def check_every_step(
    model: BlockDiffusionModel, case: str, entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replays one entry alone; canvases, decisions and logits of each step as the reference's."""
    with monkeypatch.context() as patch:
        recorder = Recorder(model, patch)
        check(entry, run(model, case, [entry], slots=1)[0])
    stored, step = cases.expected(case), 0
    for canvas in entry["expected"]["canvases"]:
        want = {role: stored[name] for role, name in canvas.items()}
        last = step + len(want["argmax"])
        accepted, argmax, finished = zip(*recorder.steps[step:last], strict=True)
        assert recorder.canvas_in[step:last] == want["canvas_in"].tolist()
        assert list(accepted) == want["accepted"].bool().tolist()
        assert list(argmax) == want["argmax"].tolist()
        # the last step ends a canvas even where the stopping rule does not hold
        assert list(finished)[:-1] == want["finished"].bool().tolist()[:-1]
        if "logits" in want:
            got = torch.stack(recorder.logits[step:last])
            cases.assert_within(entry, "logits", got, want["logits"])
        step = last
    assert step == len(recorder.steps)


def check_together(model: BlockDiffusionModel, case: str, slots: int, budget: int) -> None:
    """Requests of different parameters and lengths share rounds, their prompts in chunks."""
    entries = [entry for entry in cases.entries(case) if entry["kind"] == "generate"]
    for entry, outcome in zip(entries, run(model, case, entries, slots, budget), strict=True):
        assert outcome.output_ids == entry["expected"]["token_ids"], entry["name"]
        assert outcome.forwards.commit == 0


@pytest.mark.parametrize(("case", "entry"), EVERY)
def test_every_step_alone(
    case: str, entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_every_step(cases.model(case), case, entry, monkeypatch)


@pytest.mark.parametrize("case", cases.CANVAS_CASES)
@pytest.mark.parametrize(("slots", "budget"), [(8, 512), (2, 7)])
def test_together(case: str, slots: int, budget: int) -> None:
    check_together(cases.model(case), case, slots, budget)


@pytest.mark.parametrize("case", cases.CANVAS_CASES)
def test_generate_command(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [entry for entry in cases.entries(case) if entry["kind"] == "generate"]
    lines = tmp_path / "requests.jsonl"
    lines.write_text("\n".join(json.dumps(entry) for entry in entries))
    folder = str(cases.FIXTURES / case)
    words = ["generate", "--model", folder, "--requests", str(lines), "--format", "json"]
    assert run_command(words) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for entry, got in zip(entries, shown, strict=True):
        assert got["output_ids"] == entry["expected"]["token_ids"]
        assert got["finish_reason"] == entry["expected"]["finish_reason"]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"params": {"max_tokens": 24}}, "end before step 0 of canvas 2"),
        ({"params": {"max_denoising_steps": 7}}, "end before step 6 of canvas 0"),
        ({"params": {"replay": False}}, "replay, inputs: recorded draws need both"),
        ({"inputs": {"sampled": ["nowhere", "nowhere"]}}, "'nowhere' cannot be read"),
        ({"inputs": {"sampled": []}}, "one name per canvas"),
        ({"inputs": {"start_canvas": ["prefill_logits/len1"] * 2}}, "has shape"),
    ],
)
def test_replays_that_cannot_work(
    changes: dict[str, Any], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = "diffusion_gemma/canvas8"
    entry = next(e for e in cases.entries(case) if e["name"] == "two_canvases")
    changed = {**entry, **{key: {**entry[key], **own} for key, own in changes.items()}}
    lines = tmp_path / "requests.jsonl"
    lines.write_text(json.dumps(changed))
    words = ["generate", "--model", str(cases.FIXTURES / case), "--requests", str(lines)]
    assert run_command(words) != 0
    error = capsys.readouterr().err
    assert text in error, error


def test_a_record_that_ends_fails_its_own_request_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = "diffusion_gemma/canvas8"
    entry = next(e for e in cases.entries(case) if e["name"] == "two_canvases")
    longer = {**entry, "name": "longer", "params": {**entry["params"], "max_tokens": 24}}
    lines = tmp_path / "requests.jsonl"
    lines.write_text(json.dumps(longer) + "\n" + json.dumps(entry))
    folder = str(cases.FIXTURES / case)
    words = ["generate", "--model", folder, "--requests", str(lines), "--format", "json"]
    assert run_command(words) == 1
    out, err = capsys.readouterr()
    failed, whole = map(json.loads, out.splitlines())
    assert whole["output_ids"] == entry["expected"]["token_ids"] and "error" not in whole
    assert failed["output_ids"] == whole["output_ids"] and failed["finish_reason"] is None
    assert "line 1: inputs: the recorded draws end before step 0 of canvas 2" in failed["error"]
    assert "Traceback" not in err and failed["error"] in err.splitlines()[-1]


def test_recorded_ids_are_checked(tmp_path: Path) -> None:
    model = cases.model("diffusion_gemma/canvas8")
    names = {"start_canvas": ["a"], "sampled": ["b"], "random": ["b"]}
    fields = check_fields({"input_ids": [1], "replay": True, "inputs": names})
    job = Job(build_request(fields, 0, model.info, None), replay=fields.inputs)
    ids = torch.zeros(8, dtype=torch.int64)
    save_file({"a": ids, "b": ids[None] + 128}, tmp_path / "expected.safetensors")
    with pytest.raises(RequestError, match="'b' holds ids outside of 0 to 127"):
        read_draws([job], model.info, RecordedTensors(tmp_path))
