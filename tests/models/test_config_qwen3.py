"""Configs of Qwen3 and Qwen3-MoE: what they leave out, what is refused. Run: pytest tests/models"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from blockdiff.checkpoint import load_model
from blockdiff.cli.logit_requests import parse_request
from blockdiff.config import AttentionConfig, parse_config
from blockdiff.errors import ConfigError
from blockdiff.models.expert_layout import ONE_BY_ONE
from blockdiff.models.registry import FAMILIES

TRUNK: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 32,
    "hidden_size": 18,
    "num_hidden_layers": 4,
    "intermediate_size": 24,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "eos_token_id": 1,
    "max_position_embeddings": 64,
}
MOE = {
    **TRUNK,
    "model_type": "qwen3_moe",
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 6,
}


def parse(config: dict[str, Any], **changes: Any) -> AttentionConfig:
    found = parse_config({**config, **changes})
    assert isinstance(found, AttentionConfig)
    return found


def test_what_configs_leave_out() -> None:
    for config in (TRUNK, MOE):
        found = parse(config)
        assert (found.commits, found.block_anchor, found.mask_token_id) == (
            "causal",
            "prompt_end",
            None,
        )
        assert (found.block_size, found.default_threshold, found.rope_theta) == (32, 0.9, 1e4)
    assert parse(TRUNK).dense_layers == (0, 1, 2, 3) and parse(TRUNK).router is None
    bare = {key: value for key, value in TRUNK.items() if key != "head_dim"}
    assert parse(bare).head_dim == 128
    bare = {key: value for key, value in MOE.items() if key != "head_dim"}
    assert parse(bare).head_dim == 6
    # as transformers has it; published configs say true
    router = parse(MOE).router
    assert router is not None and not router.is_normalised


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, ()),
        ({"mlp_only_layers": None}, ()),
        ({"mlp_only_layers": [3, 0]}, (0, 3)),
        ({"decoder_sparse_step": 2}, (0, 2)),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [2]}, (0, 1, 2, 3)),
    ],
)
def test_which_layers_are_dense(changes: dict[str, Any], dense: tuple[int, ...]) -> None:
    assert parse(MOE, **changes).dense_layers == dense


def test_newer_files_say_num_local_experts() -> None:
    newer = {key: value for key, value in MOE.items() if key != "num_experts"}
    router = parse(newer, num_local_experts=5).router
    assert router is not None and router.num_experts == 5
    with pytest.raises(ConfigError, match="num_local_experts is 6"):
        parse(MOE, num_local_experts=6)


@pytest.mark.parametrize(
    ("config", "changes", "text"),
    [
        (TRUNK, {"attention_bias": True}, "attention_bias is True"),
        (TRUNK, {"use_sliding_window": True}, "use_sliding_window is True"),
        (TRUNK, {"layer_types": ["sliding_attention"] * 4}, "layer_types is"),
        (TRUNK, {"layer_types": ["full_attention"]}, "layer_types is .* a list of 4 entries"),
        (TRUNK, {"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_type is 'yarn'"),
        (TRUNK, {"quantization_config": {"bits": 4}}, "quantization_config"),
        (TRUNK, {"mask_token_id": 32}, "mask_token_id is 32"),
        (TRUNK, {"block_anchor": "middle"}, "block_anchor is 'middle'"),
        (MOE, {"mlp_only_layers": [4]}, r"mlp_only_layers is \[4\]; .* from 0 to 3"),
        (MOE, {"mlp_only_layers": 0}, "mlp_only_layers is 0"),
        (MOE, {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        (MOE, {"num_experts_per_tok": 6}, "num_experts_per_tok is 6"),
        (MOE, {"num_experts": None}, "num_local_experts is missing"),
        (MOE, {"num_shared_experts": 1}, "num_shared_experts is 1"),
        (MOE, {"norm_topk_prob": "yes"}, "norm_topk_prob is 'yes'"),
        (MOE, {"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'"),
        (MOE, {"expert_capacity": 3}, "expert_capacity is 3"),
        (MOE, {"head_dim": None, "num_attention_heads": 4}, "hidden_size is 18; .* multiple of"),
    ],
)
def test_refusals(config: dict[str, Any], changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        parse(config, **changes)
    assert "\n" not in str(caught.value)


def test_facts_of_a_loaded_model(tmp_path: Path) -> None:
    config = {**MOE, "mask_token_id": 31, "block_anchor": "zero", "mlp_only_layers": [1]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = FAMILIES["qwen3_moe"].shapes(parse(config), ONE_BY_ONE)
    tensors = {
        name if name.startswith("lm_head") else f"model.{name}": torch.randn(shape)
        for name, shape in shapes.items()
    }
    save_file(tensors, str(tmp_path / "model.safetensors"))
    model = load_model(tmp_path)
    assert model.formulation == "causal" and model.info.supports_autoregressive
    assert (model.info.block_anchor, model.info.mask_token_id) == ("zero", 31)
    # no grid to keep to, unlike block-causal families
    fields = {"phase": "commit", "input_ids": [1], "block_ids": [2, 3], "next_ids": [4]}
    assert not parse_request(fields, model.info, model.formulation).previews_next
