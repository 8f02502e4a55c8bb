"""Reading config.json: what is accepted and how refusals read. Run: pytest tests/models"""

import json
from pathlib import Path
from typing import Any

import pytest

from blockdiff.config import FULL, LINEAR, load_config, parse_config
from blockdiff.errors import ConfigError

from .checkpoints import TINY


def changed(**changes: Any) -> dict[str, Any]:
    """The tiny config with keys replaced; None removes a key."""
    return {k: v for k, v in {**TINY, **changes}.items() if v is not None}


def test_defaults_and_derived_values() -> None:
    config = parse_config(TINY)
    assert config.layer_types == (LINEAR, LINEAR, LINEAR, FULL)
    assert config.rotary_dim == 2
    assert config.conv_channels == 2 * 4 + 8
    assert config.block_anchor == "prompt_end"
    assert config.default_threshold == 0.9
    assert config.eos_token_ids == (1,)


def test_optional_keys_are_used() -> None:
    config = parse_config(
        changed(block_anchor="zero", decoding={"threshold": 0.8}, eos_token_id=[2, 3, 2])
    )
    assert (config.block_anchor, config.default_threshold) == ("zero", 0.8)
    assert config.eos_token_ids == (2, 3)


def test_nested_text_config_and_missing_mask_are_fine_for_the_trunk() -> None:
    text = changed(model_type="qwen3_5_moe_text", mask_token_id=None)
    config = parse_config({"model_type": "qwen3_5_moe", "text_config": text})
    assert config.model_type == "qwen3_5_moe"
    assert config.mask_token_id is None


def test_generation_config_wins_for_eos(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert load_config(tmp_path).eos_token_ids == (5, 6)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 99}')
    with pytest.raises(ConfigError, match="generation_config.json: eos_token_id is 99.*0 to 31"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"model_type": "llama"}, "model_type 'llama' is not known; allowed"),
        ({"model_type": None}, "model_type None"),
        ({"mask_token_id": None}, "mask_token_id is missing; it must be an integer from 0 to 31"),
        ({"mask_token_id": 32}, "mask_token_id is 32"),
        ({"mask_token_id": True}, "mask_token_id is True"),
        ({"layer_types": ["linear_attention"]}, "layer_types is .* a list of 4 entries"),
        ({"layer_types": ["mamba"] * 4}, "layer_types"),
        ({"vocab_size": "32"}, "vocab_size is '32'"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, "multiple of num_key_value_heads"),
        ({"linear_num_value_heads": 3, "linear_num_key_heads": 2}, "multiple of linear_num_key"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5; .* from 1 to 4"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters.rope_type is 'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "rope_type is 'linear'"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_parameters.rope_theta is -1"),
        ({"rope_parameters": {"partial_rotary_factor": 0.01}}, "partial_rotary_factor"),
        ({"num_shared_experts": 2}, "num_shared_experts is 2"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False"),
        ({"expert_capacity": 48}, "expert_capacity is 48"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"block_anchor": "middle"}, "block_anchor is 'middle'; it must be one of"),
        ({"decoding": {"threshold": 1.5}}, "decoding.threshold is 1.5"),
        ({"decoding": 3}, "decoding is 3"),
        ({"block_size": 0}, "block_size is 0"),
        ({"eos_token_id": [1, "x"]}, "eos_token_id"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings"),
    ],
)
def test_refusals_name_key_value_and_what_is_allowed(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        parse_config(changed(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "\xff"])
def test_unreadable_files(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match="config.json"):
        load_config(tmp_path)


def test_missing_folder_and_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not found"):
        load_config(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="config.json: file not found"):
        load_config(tmp_path)
