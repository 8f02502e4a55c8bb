"""Golden entries on 2 and 4 ranks over gloo: the reference's tokens, logits and states.

Run: pytest tests/parallel/test_golden.py
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from blockdiff.cli.line_fields import check_fields, parse_line
from blockdiff.cli.logit_requests import parse_request
from blockdiff.cli.logit_runner import LogitRunner
from blockdiff.cli.recorded import RecordedTensors
from blockdiff.cli.request_lines import build_request
from blockdiff.core import Phase
from blockdiff.engine import Engine, EngineConfig
from blockdiff.jobs import Job, run_jobs
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.pages import CachePool, CacheWork, default_page_length
from blockdiff.parallel.load import ParallelSettings, load_parallel
from blockdiff.parallel.model import ParallelModel
from tests.golden import cases
from tests.golden.test_generate import CASES as GENERATE_CASES
from tests.golden.test_generate import check, generate_entries
from tests.golden.test_replay import check_every_step, check_together

from .answers import decode

# one case per family, and those whose key heads have to be copied
SHARED = [
    ("clover_moe/layers4_block8", 2),
    ("clover_moe/layers8_block32_bf16_fused_sharded", 4),
    ("qwen3_5_moe/layers8_block32_bf16_fused_nested_sharded", 2),
    ("llada2_moe/block8", 2),
    ("llada2_moe_editing/block32_bf16_sharded", 2),
    ("sdar/block4", 2),
    ("sdar_moe/block8_bf16_sharded", 2),
    ("diffusion_gemma/canvas8", 2),
    ("diffusion_gemma/canvas16_bf16_sharded", 4),
]


@pytest.fixture(scope="module", params=SHARED, ids=lambda p: f"{p[0]}-{p[1]}")
def shared(request: pytest.FixtureRequest) -> Iterator[tuple[str, ParallelModel]]:
    case, size = request.param
    folder = cases.FIXTURES / case
    model = load_parallel(folder, "cpu", "float32", ParallelSettings(size))
    yield case, model
    pids = [follower.process.pid for follower in model.followers]
    model.close()
    assert pids and not any((Path("/proc") / str(pid)).exists() for pid in pids)


def test_every_rank_reads_its_part(shared: tuple[str, ParallelModel]) -> None:
    case, model = shared
    whole = cases.model(case).bytes_read
    size = len(model.rank_bytes_read)
    assert max(model.rank_bytes_read) < whole * (1 / size + 0.1)
    # norms, routers and copied key heads are read by several ranks
    assert whole <= sum(model.rank_bytes_read) < 1.3 * whole


def test_logits_and_states(shared: tuple[str, ParallelModel]) -> None:
    """A few of every kind; states and traces are whole again."""
    case, model = shared
    of_kind: dict[str, int] = {}
    for entry in cases.entries(case):
        of_kind[entry["kind"]] = of_kind.get(entry["kind"], 0) + 1
        if entry["kind"] == "generate" or of_kind[entry["kind"]] > 2:
            continue
        request = parse_request(entry, model.info, model.formulation)
        recorded = RecordedTensors(cases.FIXTURES / case)
        got = LogitRunner(model, request.total_tokens, recorded).run(request)
        for role, tensor in cases.expected_roles(case, entry).items():
            cases.assert_within(entry, role, got[role], tensor)


def test_tokens(shared: tuple[str, ParallelModel], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third golden entry, eight at a time; else the tokens that one process generates."""
    case, model = shared
    if case in cases.CANVAS_CASES:
        check_replays(model, case, monkeypatch)
        # the draws of a replay are given, those of a server are made
    if case not in GENERATE_CASES:
        assert decode(model) == decode(cases.model(case))  # type: ignore[arg-type]
        return
    entries = generate_entries(case)[::3]
    jobs = []
    for uid, entry in enumerate(entries):
        fields = check_fields(parse_line(cases.as_line(entry)))
        jobs.append(Job(build_request(fields, uid, model.info, None), fields.name))
    outcomes = run_jobs(Engine(model, EngineConfig(max_slots=8, max_context=256)), jobs)
    for entry, outcome in zip(entries, outcomes, strict=True):
        check(entry, outcome)


def test_pages_and_snapshots(shared: tuple[str, ParallelModel]) -> None:
    """A pool, its work and rounds that name pages reach every rank."""
    case, model = shared
    got, want = pooled_rounds(model), pooled_rounds(cases.model(case))
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def pooled_rounds(model: Any) -> list[Tensor]:
    """Logits of two blocks of a prompt, and of the second one again from a snapshot and a copy."""
    block = model.info.block_length
    length = default_page_length(block)
    caches = model.new_caches(2, 64, CachePool(8, length, snapshots=1))
    caches.prepare(CacheWork(cleared=np.arange(8), reset_slots=np.array([0, 1])))
    pages = np.array([[5, 1, 7, 1], [6, 3, 0, 3]])

    def segment(slot: int, phase: Phase, context: int) -> Segment:
        ids = range(3 + context, 3 + context + block)
        return Segment(phase, slot, context, ids, range(block), block)

    both = [segment(0, Phase.PREFILL, 0), segment(0, Phase.PREFILL, block)]
    batch = RoundBatch.from_segments(both, pages[[0, 0]], np.array([2, -1]))
    found = [model.forward(batch, caches)]
    # the first block is all of a page, or half of one
    lines = {"restore_from": np.array([2]), "restore_to": np.array([1])}
    caches.prepare(CacheWork(copy_from=pages[0, :1], copy_to=pages[1, :1], **lines))
    then = [segment(1, Phase.COMMIT, block), segment(1, Phase.PREVIEW, 2 * block)]
    found.append(model.forward(RoundBatch.from_segments(then, pages[[1, 1]]), caches))
    torch.testing.assert_close(found[1][:block], found[0][block:], atol=1e-3, rtol=1e-3)
    return found


def check_replays(model: ParallelModel, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All golden canvases in mixed rounds, and every third alone, step by step."""
    check_together(model, case, slots=2, budget=7)
    for entry in [entry for entry in cases.entries(case) if entry["kind"] == "generate"][::3]:
        check_every_step(model, case, entry, monkeypatch)
