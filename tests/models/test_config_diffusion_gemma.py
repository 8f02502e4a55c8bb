"""Configs of DiffusionGemma: read as published, refused where the maths would differ."""

import json
from pathlib import Path
from typing import Any

import pytest

from blockdiff.config import FULL, SLIDING, DiffusionGemmaConfig, load_config, parse_config
from blockdiff.errors import ConfigError

TEXT: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 7,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 6,
    "eos_token_id": 1,
    "use_bidirectional_attention": "vision",
}


def parse(generation: dict[str, Any] | None = None, **changes: Any) -> DiffusionGemmaConfig:
    text = {key: value for key, value in {**TEXT, **changes}.items() if value != "absent"}
    config = parse_config(
        {"model_type": "diffusion_gemma", "canvas_length": 8, "text_config": text}, generation
    )
    assert isinstance(config, DiffusionGemmaConfig)
    return config


def test_what_configs_leave_out() -> None:
    config = parse(num_hidden_layers=8)
    assert config.layer_types == (*(SLIDING,) * 5, FULL, SLIDING, FULL)
    assert (config.block_size, config.sliding.window, config.full.window) == (8, 512, None)
    assert (config.full.head_dim, config.full.kv_heads) == (512, 2)
    assert (config.sliding.rotary.theta, config.sliding.rotary.pairs) == (1e4, 4)
    assert (config.full.rotary.theta, config.full.rotary.pairs) == (1e6, 64)
    assert config.final_logit_softcapping == 30.0
    defaults = config.diffusion
    assert (defaults.denoise_steps, defaults.entropy_bound) == (48, 0.1)
    assert (defaults.t_min, defaults.t_max) == (0.4, 0.8)
    assert (defaults.stability_threshold, defaults.confidence_threshold) == (1, 0.005)


def test_a_bare_text_config_has_the_default_canvas() -> None:
    assert parse_config({**TEXT, "model_type": "diffusion_gemma_text"}).block_size == 256


def test_both_spellings_of_full_attention_shapes() -> None:
    types = [SLIDING, FULL, FULL]
    published = parse(
        num_hidden_layers=3, layer_types=types, global_head_dim=24, num_global_key_value_heads=1
    )
    own = {"head_dim": 24, "num_key_value_heads": 1}
    written = parse(num_hidden_layers=3, layer_types=types, per_layer_config={"1": own, "2": own})
    assert published == written
    # only what differs from sliding layers is written
    same = parse(num_hidden_layers=3, layer_types=types, per_layer_config={})
    assert (same.full.head_dim, same.full.kv_heads) == (8, 2)
    heads = {"num_key_value_heads": 4}
    some = parse(num_hidden_layers=3, layer_types=types, per_layer_config={"1": heads, "2": heads})
    assert (some.full.head_dim, some.full.kv_heads) == (8, 4)
    assert (written.attention(1).head_dim, written.attention(0).head_dim) == (24, 8)


def test_generation_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**TEXT, "model_type": "diffusion_gemma"}))
    sampler = {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.3}
    values = {"max_denoising_steps": 9, "t_max": 0.9, "sampler_config": sampler, "eos_token_id": 3}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    config = load_config(tmp_path)
    assert isinstance(config, DiffusionGemmaConfig)
    assert (config.diffusion.denoise_steps, config.diffusion.entropy_bound) == (9, 0.3)
    assert (config.diffusion.t_min, config.diffusion.t_max) == (0.4, 0.9)
    assert config.eos_token_ids == (3,)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
        ({"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input is 256"),
        ({"num_kv_shared_layers": 2}, "num_kv_shared_layers is 2"),
        ({"enable_moe_block": False}, "enable_moe_block is False"),
        ({"attention_k_eq_v": False}, "attention_k_eq_v is False"),
        ({"use_double_wide_mlp": True}, "use_double_wide_mlp is True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"quantization_config": {"bits": 4}}, "quantization_config.quant_method is missing"),
        ({"layer_types": [SLIDING] * 7}, "layer_types is"),
        ({"layer_types": [FULL]}, "layer_types is"),
        ({"layer_types": ["linear_attention"] * 6 + [FULL]}, "layer_types is"),
        ({"num_experts": "absent"}, "num_experts is missing"),
        ({"top_k_experts": 9}, "top_k_experts is 9"),
        ({"num_key_value_heads": 3}, r"num_attention_heads is 4; it must be a multiple"),
        ({"num_global_key_value_heads": 3}, r"num_attention_heads is 4; it must be a multiple"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"global_head_dim": 9}, "full attention layers, head_dim is 9"),
        ({"per_layer_config": {"0": {"head_dim": 8}}}, "per_layer_config is"),
        ({"per_layer_config": [1]}, "per_layer_config is"),
        ({"per_layer_config": {"5": {"window": 8}, "6": {"window": 8}}}, "per_layer_config is"),
        ({"per_layer_config": {"5": {"head_dim": 8}, "6": {"head_dim": 16}}}, "per_layer_config"),
        ({"sliding_window": 1}, "sliding_window is 1"),
        ({"final_logit_softcapping": 0.0}, "final_logit_softcapping is 0.0"),
        ({"rope_parameters": {SLIDING: {"rope_type": "default"}}}, "rope_parameters is"),
        ({"rope_parameters": {SLIDING: {"rope_type": "yarn"}, FULL: {}}}, "rope_type is 'yarn'"),
        ({"rope_parameters": {SLIDING: {"factor": 2.0}, FULL: {}}}, "factor is 2.0"),
        (
            {"rope_parameters": {SLIDING: {"partial_rotary_factor": 0.5}, FULL: {}}},
            "rope_parameters.sliding_attention.partial_rotary_factor is 0.5",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        parse(**changes)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("generation", "text"),
    [
        ({"max_denoising_steps": 0}, "max_denoising_steps is 0"),
        ({"sampler_config": {"entropy_bound": 0}}, "sampler_config.entropy_bound is 0"),
        ({"sampler_config": {"_cls_name": "Other"}}, "_cls_name is 'Other'"),
        ({"t_min": 0.9}, "t_max is missing; it must be at least t_min 0.9"),
        ({"stability_threshold": -1}, "stability_threshold is -1"),
        ({"confidence_threshold": 0}, "confidence_threshold is 0"),
    ],
)
def test_refused_generation_configs(generation: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse(generation)
