"""What plans assume is what the engine does. Run: pytest tests/unit/planning"""

import inspect
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from blockdiff.checkpoint import load_model
from blockdiff.cli.plan_advice import DEFAULT_SLOTS
from blockdiff.config import DiffusionGemmaConfig, HybridConfig, load_config, parse_config
from blockdiff.engine import Engine, EngineConfig, forward
from blockdiff.errors import ConfigError
from blockdiff.models.expert_layout import FUSED, ONE_BY_ONE, ExpertLayout
from blockdiff.models.group import Alone
from blockdiff.models.registry import FAMILIES
from blockdiff.models.share import Share, check_divisible
from blockdiff.planning import Setup, activations, make_plan, needs, read_model
from blockdiff.planning.families import describe
from blockdiff.planning.split import share, split_problem
from blockdiff.planning.units import GIB
from blockdiff.weights.groups import group_of
from blockdiff_kernels.gated_delta import gated_delta
from tests.models.checkpoints import TINY, random_tensors, write
from tests.unit.planning.families import CONFIGS, LARGE, LLADA2, SDAR, TIED, write_random

DEMO = Path(__file__).resolve().parents[3] / "demo" / "checkpoint"
MEASURED = Path(__file__).with_name("measured_round.py")
# so that what is freed is given back, and high-water marks are the tensors'
RETURNING = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_TRIM_THRESHOLD_": "1048576"}
SLOTS, CONTEXT, PREFILL_ROWS = 4, 4096, 128


@pytest.mark.parametrize("layout", [ONE_BY_ONE, FUSED], ids=["one by one", "fused"])
@pytest.mark.parametrize("config", CONFIGS)
def test_parts_of_a_config_are_those_of_its_tensors(
    config: dict[str, Any], layout: ExpertLayout
) -> None:
    parsed = parse_config(config)
    counted: dict[str, int] = {}
    for name, shape in FAMILIES[parsed.model_type].shapes(parsed, layout).items():
        group = group_of(name)
        counted[group] = counted.get(group, 0) + math.prod(shape)
    assert describe(parsed).parts == counted


def test_every_family_that_loads_can_be_planned() -> None:
    assert {config["model_type"] for config in CONFIGS} == set(FAMILIES)


def test_headers_and_config_agree_on_the_demo() -> None:
    found = read_model(DEMO)
    assert found.has_headers and found.parts == describe(load_config(DEMO)).parts


@pytest.mark.parametrize("config", [{**LLADA2, **TIED}, SDAR])
def test_headers_and_config_agree_on_a_folder(tmp_path: Path, config: dict[str, Any]) -> None:
    found = read_model(write_random(tmp_path, config))
    assert found.has_headers and found.parts == found.shape.parts


def test_preview_tensors_that_are_not_used_are_not_counted(tmp_path: Path) -> None:
    write(tmp_path, random_tensors(TINY), {**TINY, "preview_formulation": "A"})
    found = read_model(tmp_path)
    assert found.has_headers and "preview operator" not in found.parts


def test_weights_of_another_config_are_refused(tmp_path: Path) -> None:
    write(tmp_path, random_tensors(TINY), {**TINY, "vocab_size": 64})
    with pytest.raises(ConfigError, match="parameters"):
        read_model(tmp_path)


@pytest.mark.parametrize(("dtype", "name"), [("fp32", "float32"), ("bf16", "bfloat16")])
@pytest.mark.parametrize("config", CONFIGS)
def test_caches_are_as_large_as_planned(
    tmp_path: Path, config: dict[str, Any], dtype: str, name: str
) -> None:
    model = load_model(write_random(tmp_path, config), dtype=name)
    caches = Engine(model, EngineConfig(max_slots=3, max_context=100))._caches
    # a view of a stack shares its memory; lengths are the slots' own, a few bytes each
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for value in vars(caches).values()
        for tensor in (value if isinstance(value, tuple) else (value,))
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }
    shape = read_model(tmp_path).shape
    planned = needs.kv_bytes(shape, dtype, 100) + needs.state_bytes(shape, dtype)
    planned += needs.kept_state_bytes(shape, dtype, 100)
    empty = needs.empty_page_bytes(shape, dtype)
    assert sum(storages.values()) == 3 * planned + empty


class FirstOf(Alone):
    """A group whose other ranks are nowhere."""

    def __init__(self, size: int) -> None:
        self.size = size


@pytest.mark.parametrize("ways", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("config", [*CONFIGS, *LARGE.values()])
def test_devices_share_a_model_as_the_engine_does(config: dict[str, Any], ways: int) -> None:
    parsed = parse_config(config)
    if ways == 1:
        assert split_problem(describe(parsed), 1) is None
        assert share(describe(parsed), 1) == describe(parsed)
        return
    try:
        check_divisible(parsed, ways)
    except ConfigError:
        assert split_problem(describe(parsed), ways) is not None
        return
    assert split_problem(describe(parsed), ways) is None
    own, local = share(describe(parsed), ways), Share(parsed, FirstOf(ways)).local()
    assert {kind.heads for kind in own.attention} == {local.num_attention_heads}
    if isinstance(local, DiffusionGemmaConfig):
        kv_heads = [local.sliding.kv_heads, local.full.kv_heads]
    else:
        kv_heads = [local.num_key_value_heads]
    assert [kind.kv_heads for kind in own.attention] == kv_heads
    if own.delta is not None:
        assert isinstance(local, HybridConfig)
        assert own.delta.key_heads == local.linear_num_key_heads
        assert own.delta.value_heads == local.linear_num_value_heads


def test_defaults_and_tiles_are_the_engine_s() -> None:
    engine = EngineConfig()
    assert (DEFAULT_SLOTS, Setup(GIB).prefill_rows) == (
        engine.max_slots,
        engine.prefill_token_budget,
    )
    assert activations.GREEDY_TILE == forward.GREEDY_TILE
    assert activations.SAMPLED_TILE == forward.SAMPLED_TILE
    chunk = inspect.signature(inspect.unwrap(gated_delta)).parameters.get("chunk")
    assert chunk is None or chunk.default == activations.DELTA_CHUNK


def measure(folder: Path) -> dict[str, dict[str, int]]:
    sizes = [str(size) for size in (SLOTS, CONTEXT, PREFILL_ROWS)]
    words = [sys.executable, str(MEASURED), str(folder), *sizes]
    env = {**os.environ, **RETURNING}
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=env)
    found: dict[str, dict[str, int]] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("family", sorted(LARGE))
def test_measured_memory_is_as_planned_within_a_tenth(tmp_path: Path, family: str) -> None:
    found = measure(write_random(tmp_path, LARGE[family]))
    sizes = {"slots": SLOTS, "context": CONTEXT, "prefill_rows": PREFILL_ROWS}
    for dtype, name in (("fp32", "float32"), ("bf16", "bfloat16")):
        setup = Setup(GIB, dtype, **sizes, device="cpu")
        demand, measured = make_plan(read_model(tmp_path), setup).demand, found[name]
        staying = demand.weights + demand.caches
        assert measured["resident"] == pytest.approx(staying, rel=0.1), name
        planned = demand.total - demand.overhead
        assert measured["resident"] + measured["peak"] == pytest.approx(planned, rel=0.1), name
        assert measured["runtime"] < demand.overhead
