"""Public quantised formats give the models they stand for. Run: pytest tests/models"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from blockdiff.checkpoint import load_model
from blockdiff.config import parse_config
from blockdiff.core import Phase
from blockdiff.errors import ConfigError
from blockdiff.models.base import RoundBatch, Segment
from blockdiff.models.group import Alone
from blockdiff.models.layers.quantized import ListedExperts, QuantizedLinear
from blockdiff.models.trunk import LanguageModel
from blockdiff_kernels.implementation import using

from .decoding import generate
from .quantized_checkpoints import CONFIGS, FORMATS, write_pair

LAYER = "model.layers.0.linear_attn.out_proj"


def logits(model: LanguageModel) -> Tensor:
    caches = model.new_caches(1, 16)
    segments = [Segment(Phase.PREFILL, 0, 0, [3, 4, 5, 6], range(4), 4)]
    first = model.forward(RoundBatch.from_segments(segments), caches)
    preview = Segment(Phase.PREVIEW, 0, 4, [31] * 4, range(4))
    return torch.cat((first, model.forward(RoundBatch.from_segments([preview]), caches)))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("family", CONFIGS)
def test_a_format_is_the_dense_model_it_stands_for(tmp_path: Path, family: str, name: str) -> None:
    quantised, dense = write_pair(tmp_path, family, FORMATS[name])
    want = logits(load_model(dense))
    got = logits(load_model(quantised))
    torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)
    narrow = logits(load_model(quantised, dtype="bfloat16"))
    same = logits(load_model(dense, dtype="bfloat16"))
    # both are rounded in every layer, in different places
    assert (narrow - want).norm() <= 2 * (same - want).norm() + 0.01 * want.norm()


@pytest.mark.parametrize("name", ["int8", "int4", "fp8-block"])
def test_kernels_give_the_dense_model_too(tmp_path: Path, name: str) -> None:
    quantised, dense = write_pair(tmp_path, "clover_moe", FORMATS[name])
    want = logits(load_model(dense))
    with using("projection=triton,quantized_linear=triton"):
        got = logits(load_model(quantised))
    torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", ["int4", "int8", "gptq"])
@pytest.mark.parametrize("family", CONFIGS)
def test_tokens_are_those_of_the_dense_model(tmp_path: Path, family: str, name: str) -> None:
    quantised, dense = write_pair(tmp_path, family, FORMATS[name])
    want = generate(load_model(dense))
    assert len({token for tokens in want for token in tokens}) > 1
    assert generate(load_model(quantised)) == want


def test_projections_stay_quantised(tmp_path: Path) -> None:
    quantised, _ = write_pair(tmp_path, "clover_moe", FORMATS["int4"])
    model: Any = load_model(quantised, dtype="bfloat16")
    experts = model.layers[0].moe.weights.experts
    assert isinstance(experts, ListedExperts) and experts.count == 5
    for linear in (*experts.gate_up, *experts.down, model.layers[1].attention.weights.out_proj):
        assert isinstance(linear, QuantizedLinear)
        assert linear.values is not None and linear.values.dtype == torch.uint8


def test_a_router_that_is_stored_quantised_is_dequantised(tmp_path: Path) -> None:
    quantised, dense = write_pair(tmp_path, "clover_moe", FORMATS["int8"])
    values = torch.randint(-127, 128, (4, 64), dtype=torch.int8)
    scale, name = torch.full((4, 1), 0.01), "model.layers.0.mlp.gate.weight"
    change_tensors(quantised, {name: values, name + "_scale": scale})
    change_tensors(dense, {name: values * scale})
    change_config(quantised, lambda own: own["ignore"].remove("re:.*mlp\\.gate$"))
    change_config(quantised, lambda own: own["ignore"].append("model.layers.1.mlp.gate"))
    torch.testing.assert_close(
        logits(load_model(quantised)), logits(load_model(dense)), atol=2e-4, rtol=2e-4
    )


def change_tensors(folder: Path, changes: dict[str, Tensor | None]) -> None:
    tensors = {**load_file(folder / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, str(folder / "model.safetensors"))


def change_config(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config["quantization_config"])
    (folder / "config.json").write_text(json.dumps(config))


NAN = torch.full((64, 2), float("nan"), dtype=torch.bfloat16)
BROKEN: dict[str, tuple[str, dict[str, Tensor | None], str]] = {
    "scale missing": ("int4", {"weight_scale": None}, r"out_proj\.weight_scale is missing"),
    "values missing": ("int4", {"weight_packed": None}, r"out_proj\.weight_packed is missing"),
    "scale shape": (
        "int4",
        {"weight_scale": torch.ones(64, 3)},
        r"out_proj\.weight_scale has shape \[64, 3\], must be \[64, 2\]",
    ),
    "pack size": (
        "int4",
        {"weight_packed": torch.zeros(64, 4, dtype=torch.int32)},
        r"out_proj\.weight_packed has shape \[64, 4\], must be \[64, 8\]",
    ),
    "pack dtype": (
        "int4",
        {"weight_packed": torch.zeros(64, 8)},
        r"out_proj\.weight_packed has dtype F32, must be I32",
    ),
    "stated shape": (
        "int4",
        {"weight_shape": torch.tensor([64, 60])},
        r"out_proj\.weight_shape is \[64, 60\], must be \[64, 64\]",
    ),
    "zero points": (
        "int4",
        {"weight_zero_point": torch.zeros(8, 2, dtype=torch.int32)},
        r"out_proj\.weight_zero_point is unexpected",
    ),
    "scale value": ("int4", {"weight_scale": NAN}, r"a scale of .*out_proj is not a finite"),
    "plain values": ("int8", {"weight": torch.zeros(64, 64)}, r"out_proj\.weight has dtype F32"),
    "block scale": (
        "fp8-block",
        {"weight_scale_inv": torch.ones(3, 3)},
        r"out_proj\.weight_scale_inv has shape \[3, 3\], must be \[3, 2\]",
    ),
    "asymmetric": (
        "gptq",
        {"qzeros": torch.zeros(2, 8, dtype=torch.int32)},
        r"out_proj\.qzeros: zero points are not 7; only symmetric",
    ),
    "order": (
        "gptq",
        {"g_idx": torch.zeros(64, dtype=torch.int32)},
        r"out_proj\.g_idx is not in order; only desc_act false",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_damage_is_one_line_that_names_the_tensor(tmp_path: Path, case: str) -> None:
    name, changes, text = BROKEN[case]
    folder, _ = write_pair(tmp_path, "clover_moe", FORMATS[name])
    change_tensors(folder, {f"{LAYER}.{end}": tensor for end, tensor in changes.items()})
    with pytest.raises(ConfigError, match=text) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)


def test_an_excepted_module_must_be_plain(tmp_path: Path) -> None:
    folder, _ = write_pair(tmp_path, "clover_moe", FORMATS["int8"])
    change_config(folder, lambda own: own["ignore"].append(LAYER))
    with pytest.raises(ConfigError, match=r"out_proj\.weight_scale is unexpected: config.json ex"):
        load_model(folder)


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    folder, _ = write_pair(tmp_path, "clover_moe", FORMATS["int8"])
    with pytest.raises(ConfigError, match=r"dtype is 'int4', but .* is already quantised \(int8\)"):
        load_model(folder, dtype="int4")


def weights(own: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = own["config_groups"]["group_0"]["weights"]
    return found


REFUSED: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str]] = {
    "method": ("int4", lambda own: own.update(quant_method="awq"), "quant_method is 'awq'; .*gptq"),
    "format": ("int4", lambda own: own.update(format="nvfp4"), "format is 'nvfp4'; it must be one"),
    "asymmetric": ("int4", lambda own: weights(own).update(symmetric=False), "symmetric is False"),
    "bits": ("int4", lambda own: weights(own).update(num_bits=3), r"num_bits is 3; .* \[4, 8\]"),
    "group": ("int4", lambda own: weights(own).update(group_size=48), "group_size is 48; .*32, 64"),
    "order": ("int4", lambda own: weights(own).update(actorder="group"), "actorder is 'group'"),
    "inputs": (
        "fp8",
        lambda own: own["config_groups"]["group_0"].update(input_activations={"dynamic": False}),
        "input_activations is .* absent or dynamic",
    ),
    "groups": ("int4", lambda own: own.update(config_groups={}), "config_groups is {}"),
    "cache": ("int4", lambda own: own.update(kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
    "expression": ("int4", lambda own: own.update(ignore=["re:("]), r"ignore .*'re:\(' is no"),
    "names": ("int4", lambda own: own.update(ignore="lm_head"), "ignore is 'lm_head'"),
    "gptq order": ("gptq", lambda own: own.update(desc_act=True), "desc_act is True; .* false"),
    "gptq sym": ("gptq", lambda own: own.update(sym=False), "sym is False"),
    "gptq bits": ("gptq", lambda own: own.update(bits=8), "bits is 8; it must be 4"),
    "block": (
        "fp8-block",
        lambda own: own.pop("weight_block_size"),
        "weight_block_size is missing",
    ),
    "static": (
        "fp8-block",
        lambda own: own.update(activation_scheme="static"),
        "activation_scheme",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_configs_name_key_and_value(case: str) -> None:
    name, change, text = REFUSED[case]
    declared = json.loads(json.dumps(FORMATS[name].declared))
    change(declared)
    with pytest.raises(ConfigError, match=text) as caught:
        parse_config({**CONFIGS["clover_moe"], "quantization_config": declared})
    assert "\n" not in str(caught.value) and "quantization_config." in str(caught.value)


class Rank(Alone):
    """One of two ranks that never meet."""

    size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank


@pytest.mark.parametrize("name", ["int4", "gptq", "fp8-block"])
def test_ranks_share_quantised_experts_and_projections(tmp_path: Path, name: str) -> None:
    """Each rank has its experts and its part of the shared one; outputs of ranks add up."""
    quantised, _ = write_pair(tmp_path, "clover_moe", FORMATS[name])
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    whole, *parts = (
        model_layer(load_model(quantised, group=group)) for group in (Alone(), Rank(0), Rank(1))
    )
    count = whole.moe.weights.experts.count
    ids = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [1, 3]])
    ids = torch.cat((ids, torch.full((6, 1), count - 1)), dim=1)
    weights = torch.rand(6, 3, generator=torch.Generator().manual_seed(1))
    want = whole.moe.weights.experts(x, weights, ids)
    got = sum(part.moe.weights.experts(x, weights, ids) for part in parts)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    inner = torch.randn(6, 64, generator=torch.Generator().manual_seed(2))
    want = whole.attention.weights.out_proj(inner)
    halves = inner.split(32, dim=1)
    pairs = zip(parts, halves, strict=True)
    got = sum(part.attention.weights.out_proj(half) for part, half in pairs)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)


def model_layer(model: Any) -> Any:
    return model.layers[1]
