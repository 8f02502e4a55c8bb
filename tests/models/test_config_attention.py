"""Configs of LLaDA2 and SDAR: read as published, refused where the maths would differ."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from blockdiff.checkpoint import load_model
from blockdiff.config import AttentionConfig, load_config
from blockdiff.errors import ConfigError
from blockdiff.models.expert_layout import FUSED, ONE_BY_ONE
from blockdiff.models.registry import FAMILIES

TRUNK: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "intermediate_size": 24,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "mask_token_id": 31,
    "eos_token_id": 1,
    "max_position_embeddings": 64,
}
EXPERTS: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 6}
CONFIGS: dict[str, dict[str, Any]] = {
    "sdar": {**TRUNK, "model_type": "sdar", "tie_word_embeddings": True},
    "sdar_moe": {**TRUNK, **EXPERTS, "model_type": "sdar_moe"},
    "llada2_moe": {
        **TRUNK,
        **EXPERTS,
        "model_type": "llada2_moe",
        "n_group": 4,
        "topk_group": 2,
        "num_shared_experts": 2,
        "first_k_dense_replace": 1,
    },
}


def write(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_checkpoint(folder: Path, family: str, fused: bool = False) -> Path:
    write(folder, CONFIGS[family])
    torch.manual_seed(0)
    shapes = FAMILIES[family].shapes(load_config(folder), FUSED if fused else ONE_BY_ONE)
    tensors = {
        name if name.startswith("lm_head") else f"model.{name}": torch.randn(shape) * 0.3
        for name, shape in shapes.items()
    }
    save_file(tensors, str(folder / "model.safetensors"))
    return folder


@pytest.mark.parametrize("family", CONFIGS)
def test_what_configs_leave_out(tmp_path: Path, family: str) -> None:
    config = load_config(write(tmp_path, CONFIGS[family]))
    assert isinstance(config, AttentionConfig)
    is_llada = family == "llada2_moe"
    assert config.block_size == (32 if is_llada else 4)
    assert config.default_threshold == (0.95 if is_llada else 0.85)
    assert config.rotary_dim == (4 if is_llada else 8)
    assert config.dense_layers == {"sdar": (0, 1, 2), "sdar_moe": (), "llada2_moe": (0,)}[family]


@pytest.mark.parametrize("family", CONFIGS)
def test_random_checkpoints_load(tmp_path: Path, family: str) -> None:
    model = load_model(write_checkpoint(tmp_path, family))
    assert model.info.block_anchor == "zero" and not model.info.supports_autoregressive
    assert model.info.supports_editing == (family == "llada2_moe")
    for fused in () if family == "sdar" else (True,):
        load_model(write_checkpoint(tmp_path / "fused", family, fused))


def test_insert_and_delete_tokens_reach_the_engine(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llada2_moe")
    assert not load_model(folder).info.edits_length
    write(folder, {**CONFIGS["llada2_moe"], "delete_token_id": 29, "split_token_id": 30})
    facts = load_model(folder).info
    assert facts.edits_length and facts.control_token_ids == (31, 29, 30)


def test_a_misshapen_tensor_is_named(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "sdar")
    write(folder, {**CONFIGS["sdar"], "intermediate_size": 20})
    with pytest.raises(ConfigError, match=r"mlp.gate_proj.weight has shape \[24, 16\]"):
        load_model(folder)


@pytest.mark.parametrize(
    ("family", "changes", "text"),
    [
        ("llada2_moe", {"score_function": "softmax"}, "score_function is 'softmax'"),
        ("llada2_moe", {"expert_capacity": 48}, "expert_capacity is 48; .* from 2 to 8"),
        ("llada2_moe", {"expert_capacity": 1}, "expert_capacity is 1; .* from 2 to 8"),
        ("llada2_moe", {"expert_capacity": -1}, "expert_capacity is -1"),
        (
            "llada2_moe",
            {"expert_capacity": 4, "moe_router_enable_expert_bias": False},
            "moe_router_enable_expert_bias is False",
        ),
        ("sdar_moe", {"expert_capacity": 4}, "expert_capacity is 4"),
        ("llada2_moe", {"delete_token_id": 5}, "split_token_id is missing"),
        ("llada2_moe", {"split_token_id": 5}, "delete_token_id is missing"),
        ("llada2_moe", {"delete_token_id": 5, "split_token_id": 5}, "split_token_id is 5"),
        ("llada2_moe", {"delete_token_id": 31, "split_token_id": 5}, "delete_token_id is 31"),
        ("llada2_moe", {"delete_token_id": 5, "split_token_id": 1}, "split_token_id is 1"),
        ("llada2_moe", {"delete_token_id": 5, "split_token_id": 32}, "split_token_id is 32"),
        ("llada2_moe", {"use_qkv_bias": True}, "use_qkv_bias is True"),
        ("llada2_moe", {"norm_head": True}, "norm_head is True"),
        ("llada2_moe", {"router_dtype": "bf16"}, "router_dtype is 'bf16'"),
        ("llada2_moe", {"n_group": 3}, "n_group is 3"),
        ("llada2_moe", {"n_group": 8}, "n_group is 8"),
        ("llada2_moe", {"topk_group": 5}, "topk_group is 5"),
        ("llada2_moe", {"num_experts_per_tok": 5}, "num_experts_per_tok is 5"),
        ("llada2_moe", {"first_k_dense_replace": 4}, "first_k_dense_replace is 4"),
        ("llada2_moe", {"rope_scaling": {"type": "yarn", "factor": 2}}, "rope_type is 'yarn'"),
        ("sdar", {"attention_bias": True}, "attention_bias is True"),
        ("sdar", {"use_sliding_window": True}, "use_sliding_window is True"),
        ("sdar", {"block_size": 0}, "block_size is 0"),
        ("sdar", {"block_anchor": "prompt_end"}, "block_anchor is 'prompt_end'"),
        ("sdar", {"mask_token_id": None}, "mask_token_id is None"),
        ("sdar", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("sdar_moe", {"norm_topk_prob": "no"}, "norm_topk_prob is 'no'"),
        ("llada2_moe", {"norm_topk_prob": False}, "norm_topk_prob is False"),
        ("sdar_moe", {"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
        ("sdar_moe", {"num_experts": None}, "num_experts is None"),
        ("sdar_moe", {"model_type": "llada21_moe"}, "model_type 'llada21_moe' is not known"),
    ],
)
def test_refusals(tmp_path: Path, family: str, changes: dict[str, Any], text: str) -> None:
    folder = write(tmp_path, {**CONFIGS[family], **changes})
    with pytest.raises(ConfigError, match=text) as caught:
        load_config(folder)
    assert "\n" not in str(caught.value)
