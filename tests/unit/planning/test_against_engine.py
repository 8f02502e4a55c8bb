"""What plans assume is what the engine does. Run: pytest tests/unit/planning"""

import inspect
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdiff.cache import SlotCaches
from blockdiff.cli.plan import DEFAULT_SLOTS
from blockdiff.config import load_config, parse_config
from blockdiff.engine import EngineConfig, forward
from blockdiff.errors import ConfigError
from blockdiff.models.weights import expected_shapes
from blockdiff.planning import PlannedModel, Setup, needs, read_model
from blockdiff.planning.model import config_parts
from blockdiff.planning.units import GIB
from blockdiff.weights.groups import group_of
from blockdiff_kernels.gated_delta import gated_delta
from tests.models.checkpoints import TINY, random_tensors, write

DEMO = Path(__file__).resolve().parents[3] / "demo" / "checkpoint"
CONFIGS: list[dict[str, Any]] = [
    TINY,
    {**TINY, "tie_word_embeddings": True},
    {**TINY, "model_type": "qwen3_5_moe"},
    {**TINY, "shared_expert_intermediate_size": 20, "num_hidden_layers": 7},
    {**TINY, "num_attention_heads": 6, "num_key_value_heads": 3, "linear_num_key_heads": 2},
]


@pytest.mark.parametrize("has_fused_experts", [False, True])
@pytest.mark.parametrize("config", CONFIGS)
def test_parts_of_a_config_are_those_of_its_tensors(
    config: dict[str, Any], has_fused_experts: bool
) -> None:
    parsed = parse_config(config)
    counted: dict[str, int] = {}
    for name, shape in expected_shapes(parsed, has_fused_experts).items():
        group = group_of(name)
        counted[group] = counted.get(group, 0) + math.prod(shape)
    assert config_parts(parsed) == counted


def test_headers_and_config_agree_on_the_demo() -> None:
    found = read_model(DEMO)
    assert found.has_headers and found.parts == config_parts(load_config(DEMO))


def test_weights_of_another_config_are_refused(tmp_path: Path) -> None:
    write(tmp_path, random_tensors(TINY), {**TINY, "vocab_size": 64})
    with pytest.raises(ConfigError, match="parameters"):
        read_model(tmp_path)


@pytest.mark.parametrize(("dtype", "kind"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_caches_are_as_large_as_planned(dtype: str, kind: torch.dtype) -> None:
    config = load_config(DEMO)
    caches = SlotCaches(config, 3, 100, torch.device("cpu"), kind)
    tensors = (caches.keys, caches.values, caches.states, caches.tails)
    planned = 3 * (
        100 * needs.kv_bytes_per_token(config, dtype, 1) + needs.state_bytes(config, dtype, 1)
    )
    assert sum(tensor.nbytes for tensor in tensors) == planned


def test_defaults_and_tiles_are_the_engine_s() -> None:
    engine = EngineConfig()
    assert (DEFAULT_SLOTS, Setup(GIB).prefill_rows) == (
        engine.max_slots,
        engine.prefill_token_budget,
    )
    assert needs.GREEDY_TILE == forward.GREEDY_TILE
    assert needs.SAMPLED_TILE == forward.SAMPLED_TILE
    chunk = inspect.signature(inspect.unwrap(gated_delta)).parameters.get("chunk")
    assert chunk is None or chunk.default == needs.DELTA_CHUNK


MEASURE = """
import ctypes, gc, json, sys
from blockdiff.checkpoint import load_model

def anonymous():
    gc.collect()
    # what freed temporaries left in the allocator is not the model's
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    line = next(l for l in open("/proc/self/status") if l.startswith("RssAnon"))
    return int(line.split()[1]) * 1024

before = anonymous()
model = load_model(sys.argv[1], dtype=sys.argv[2])
loaded = anonymous()
caches = model.new_caches(4, 4096)
for tensor in (caches.keys, caches.values, caches.states, caches.tails):
    tensor.fill_(1)
print(json.dumps([loaded - before, anonymous() - loaded]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("dtype", "name"), [("fp32", "float32"), ("bf16", "bfloat16")])
def test_resident_memory_is_as_planned_within_a_tenth(
    tmp_path: Path, dtype: str, name: str
) -> None:
    config = {
        **TINY,
        "vocab_size": 8192,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 16,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_experts": 16,
        "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256,
        "max_position_embeddings": 4096,
    }
    # Stored in the other dtype, so that nothing stays a view of the file.
    other = torch.bfloat16 if dtype == "fp32" else torch.float32
    write(tmp_path, {n: tensor.to(other) for n, tensor in random_tensors(config).items()}, config)
    words = [sys.executable, "-c", MEASURE, str(tmp_path), name]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    weights, caches = json.loads(done.stdout)
    model: PlannedModel = read_model(tmp_path)
    assert weights == pytest.approx(needs.weight_bytes(model, dtype, 1), rel=0.1)
    per_slot = 4096 * needs.kv_bytes_per_token(model.config, dtype, 1)
    planned = 4 * (per_slot + needs.state_bytes(model.config, dtype, 1))
    assert caches == pytest.approx(planned, rel=0.1)
