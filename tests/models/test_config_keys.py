"""No key of a config.json is passed over in silence: used, harmless, refused, or named."""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from blockdiff.config import parse_config, unused_keys
from blockdiff.errors import ConfigError

from .checkpoints import TINY
from .test_config_attention import CONFIGS


def folder_with(config: dict[str, Any], folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("family", "name"),
    [("Qwen3_5MoeConfig", "qwen3_5_moe"), ("DiffusionGemmaConfig", "diffusion_gemma")],
)
def test_every_key_that_transformers_writes_is_known(
    family: str, name: str, tmp_path: Path
) -> None:
    config = getattr(transformers, family)().to_dict()
    text = config["text_config"]
    if name == "diffusion_gemma":
        text |= {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}
        text["per_layer_config"] = {
            str(int(layer)): own for layer, own in text["per_layer_config"].items()
        }
    assert config["model_type"] == name
    assert unused_keys(folder_with(config, tmp_path)) == ()


def test_every_key_of_a_qwen3_moe_trunk_is_known(tmp_path: Path) -> None:
    trunk = transformers.Qwen3MoeConfig(norm_topk_prob=True).to_dict()
    # transformers writes this key by another name
    trunk["num_experts"] = trunk.pop("num_local_experts")
    own = {"model_type": "sdar_moe", "mask_token_id": 151669, "block_size": 4}
    assert unused_keys(folder_with({**trunk, **own}, tmp_path)) == ()


@pytest.mark.parametrize("family", CONFIGS)
def test_unknown_keys_are_named(family: str, tmp_path: Path) -> None:
    config = {**CONFIGS[family], "surprise": 1, "decoding": {"speed": 2}}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e4, "beta_fast": 32}
    found = unused_keys(folder_with(config, tmp_path))
    assert found == ("surprise", "rope_parameters.beta_fast", "decoding.speed")


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("sdar", "layer_types", ["sliding_attention"] * 3),
        ("sdar", "query_pre_attn_scalar", 64),
        ("sdar_moe", "n_group", 8),
        ("sdar_moe", "shared_expert_intermediate_size", 32),
        ("sdar_moe", "routed_scaling_factor", 2.5),
        ("llada2_moe", "kv_lora_rank", 512),
        ("llada2_moe", "mlp_only_layers", [1]),
        ("llada2_moe", "compression_config", {"format": "x"}),
        ("llada2_moe", "rope_scaling", {"rope_type": "yarn", "factor": 4.0}),
        ("llada2_moe", "decoding", {"algorithm": "entropy_bounded"}),
    ],
)
def test_keys_of_another_computation_are_refused(family: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key if key != "rope_scaling" else "rope") as caught:
        parse_config({**CONFIGS[family], key: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mamba_ssm_dtype", "bfloat16"),
        ("mlp_bias", True),
        ("canvas_length", 256),
        ("rope_scaling", {"rope_type": "linear", "factor": 2.0}),
        ("rope_scaling", 3),
    ],
)
def test_the_trunk_refuses_them_too(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match="rope|" + key):
        parse_config({**TINY, key: value})


def test_what_asks_for_nothing_is_fine() -> None:
    parse_config({**TINY, "mlp_bias": False, "clip_qkv": None, "n_routed_experts": 0})


def test_numbers_that_no_float_can_hold_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"partial_rotary_factor is 1000.*\.\.\.; it must be"
    ) as e:
        parse_config({**CONFIGS["llada2_moe"], "partial_rotary_factor": 10**400})
    assert len(str(e.value)) < 400


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a":' * 100_000)
    with pytest.raises(ConfigError, match=r"config\.json: cannot be read as JSON \(nested too"):
        unused_keys(tmp_path)


def test_end_tokens_that_the_other_file_overrules_are_no_unknown_key(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 2}')
    config = {**CONFIGS["llada2_moe"], "eos_token_id": 1}
    assert unused_keys(folder_with(config, tmp_path)) == ()
