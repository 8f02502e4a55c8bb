"""What each rank has: parts that cover the whole, and models that do not divide.

Run: pytest tests/parallel/test_share.py
"""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from torch import Tensor

from blockdiff.config import AnyConfig, DiffusionGemmaConfig, HybridConfig, load_config
from blockdiff.errors import ConfigError
from blockdiff.models.cuts import find_cut, make_cuts
from blockdiff.models.expert_layout import FUSED
from blockdiff.models.registry import FAMILIES
from blockdiff.models.share import Share, check_divisible
from blockdiff.planning.families import describe
from blockdiff.planning.split import split_problem
from tests.golden import cases


@dataclass
class Seat:
    """A place in a group that exchanges nothing."""

    rank: int
    size: int

    def all_reduce(self, x: Tensor) -> Tensor:
        raise AssertionError("nothing to exchange")

    def all_gather(self, x: Tensor, dim: int) -> Tensor:
        raise AssertionError("nothing to exchange")

    def broadcast(self, x: Tensor) -> Tensor:
        raise AssertionError("nothing to exchange")


def config_of(case: str) -> AnyConfig:
    return load_config(cases.FIXTURES / case)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("case", cases.CASES)
def test_parts_cover_every_tensor(case: str, size: int) -> None:
    """No row or column is missing, and only key heads are there more than once."""
    config = config_of(case)
    shapes = FAMILIES[config.model_type].shapes(config, FUSED)
    cuts = [make_cuts(Share(config, Seat(rank, size))) for rank in range(size)]
    for name, shape in shapes.items():
        is_gate = name.endswith("shared_expert_gate.weight")
        if ".experts." in name or ".shared_expert" in name and not is_gate:
            continue
        found = [find_cut(cut, name) for cut in cuts]
        own = [cut for cut in found if cut is not None]
        assert len(own) == size, name
        for axis, spans in (
            (0, [cut.rows for cut in own]),
            (1, [cut.columns and (cut.columns,) for cut in own]),
        ):
            if spans[0] is None:
                continue
            indices = [i for rank in spans for span in rank or () for i in range(*span)]
            assert set(indices) == set(range(shape[axis])), name
            has_key_heads = "k_proj" in name or "v_proj" in name or len(own[0].rows or ()) == 3
            assert has_key_heads or len(indices) == shape[axis], name


def test_local_config_has_this_ranks_heads() -> None:
    config = config_of("clover_moe/layers4_block8")
    assert isinstance(config, HybridConfig)
    local = Share(config, Seat(3, 4)).local()
    assert isinstance(local, HybridConfig)
    assert (local.num_attention_heads, local.num_key_value_heads) == (1, 1)
    assert (local.linear_num_value_heads, local.linear_num_key_heads) == (1, 1)
    assert (local.vocab_size, local.num_experts) == (config.vocab_size, config.num_experts)


def test_a_key_head_goes_to_the_ranks_of_its_query_heads() -> None:
    config = config_of("clover_moe/layers4_block8")
    spans = [Share(config, Seat(rank, 4)).heads(2) for rank in range(4)]
    assert spans == [(0, 1), (0, 1), (1, 2), (1, 2)]
    assert Share(config, Seat(0, 4)).copies(2) == 2


@pytest.mark.parametrize(
    ("case", "size", "changes", "named"),
    [
        ("clover_moe/layers4_block8", 3, {}, "num_attention_heads is 4; for tensor_parallel 3"),
        ("clover_moe/layers4_block8", 2, {"vocab_size": 127}, "vocab_size is 127"),
        ("clover_moe/layers4_block8", 2, {"num_experts": 7}, "num_experts is 7"),
        (
            "clover_moe/layers4_block8",
            2,
            {"shared_expert_intermediate_size": 5},
            "shared_expert_intermediate_size is 5",
        ),
        (
            "clover_moe/layers4_block8",
            4,
            {"num_attention_heads": 12, "num_key_value_heads": 3},
            "num_key_value_heads is 3; for tensor_parallel 4 it must be a multiple or a divisor",
        ),
        ("sdar/block4", 2, {"intermediate_size": 161}, "intermediate_size is 161"),
        ("sdar/block4", 8, {}, "num_attention_heads is 4"),
        ("diffusion_gemma/canvas8", 2, {"num_experts": 9}, "num_experts is 9"),
    ],
)
def test_what_does_not_divide_is_named(
    case: str, size: int, changes: dict[str, Any], named: str
) -> None:
    config = config_of(case)
    changed: AnyConfig = replace(config, **changes)
    with pytest.raises(ConfigError) as caught:
        check_divisible(changed, size)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "key"),
    [("sliding", "num_key_value_heads"), ("full", "num_global_key_value_heads")],
)
def test_key_heads_of_either_kind_of_layer_must_divide(kind: str, key: str) -> None:
    """By the engine and by the planner."""
    config = config_of("diffusion_gemma/canvas8")
    assert isinstance(config, DiffusionGemmaConfig)
    shape = replace(getattr(config, kind), kv_heads=3)
    changes: dict[str, Any] = {"num_attention_heads": 12, kind: shape}
    changed = replace(config, **changes)
    with pytest.raises(ConfigError, match=f"{key} is 3; for tensor_parallel 4"):
        check_divisible(changed, 4)
    refused = split_problem(describe(changed), 4)
    assert refused is not None and "key heads (3)" in refused
