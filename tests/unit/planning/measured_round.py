"""Measures one process: what a checkpoint and a round at full load take. Holds no tests.

Run: python measured_round.py FOLDER SLOTS CONTEXT PREFILL_ROWS, in a process of its own with
MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ set low, so that what is freed is given back.
Prints JSON, by dtype and in bytes: ``resident`` (weights and caches), ``peak`` (a round, on top of
what is there before it) and ``runtime`` (what the process takes besides).
"""

import ctypes
import gc
import json
import sys
from pathlib import Path

import torch

from blockdiff.checkpoint import load_model
from blockdiff.core import DecodingParams, Request, SamplingParams
from blockdiff.engine import Engine, EngineConfig

DTYPES = ("float32", "bfloat16")


def status(field: str) -> int:
    """Bytes of a field of /proc/self/status, after giving back what is free."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def fill(engine: Engine) -> None:
    """Touch every page of the caches: untouched zeros are not resident."""
    for value in vars(engine._caches).values():
        for tensor in value if isinstance(value, tuple) else (value,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                tensor.fill_(0.01)


def prepare(engine: Engine) -> None:
    """Every slot but one has a block to commit and one to preview, near the end of the context;
    the last one has the last rows of a long prompt to prefill."""
    block = engine.model.info.block_length
    last = engine.config.max_slots - 1
    for slot in range(last):
        add(engine, slot, block, engine.max_context // 2)
    table = engine._scheduler.table
    while not (table.written[:last] > 0).all():
        engine.step()
    table.make_room(engine.max_context + block)
    shift = engine.max_context - 2 * block - table.written[:last]
    for name in ("written", "final", "block_start", "end_position", "prompt_length"):
        getattr(table, name)[:last] += shift
    add(engine, last, engine.max_context - 2 * block, block)
    table.written[last] = table.final[last] - engine.config.prefill_token_budget


def add(engine: Engine, uid: int, prompt: int, tokens: int) -> None:
    request = Request(
        uid=uid,
        input_ids=(2 + uid,) * prompt,
        max_tokens=tokens,
        ignore_eos=True,
        sampling=SamplingParams(temperature=1.0, top_p=0.9, seed=uid),
        decoding=DecodingParams(threshold=0.0),
    )
    engine.add_request(request)


def measure(folder: str, dtype: str, settings: EngineConfig) -> dict[str, int]:
    before = status("RssAnon")
    engine = Engine(load_model(folder, dtype=dtype), settings)
    fill(engine)
    resident = status("RssAnon") - before
    # once before it is measured: what the libraries keep for new shapes is the runtime's
    prepare(engine)
    engine.step()
    engine.fail_all("measured")
    prepare(engine)
    runtime, idle = status("RssAnon") - resident, status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    commits = engine.counters.forwards.commit_fused
    engine.step()
    peak = status("VmHWM") - idle
    full = commits + settings.max_slots - 1
    assert engine.counters.forwards.commit_fused == full, "not a full round"
    return {"resident": resident, "peak": peak, "runtime": runtime}


def main(folder: str, slots: str, context: str, prefill_rows: str) -> None:
    torch.ones(64, 64) @ torch.ones(64, 64)
    settings = EngineConfig(int(slots), int(context), int(prefill_rows), num_threads=1)
    print(json.dumps({dtype: measure(folder, dtype, settings) for dtype in DTYPES}))


if __name__ == "__main__":
    main(*sys.argv[1:])
