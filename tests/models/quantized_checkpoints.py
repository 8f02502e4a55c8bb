"""Small checkpoints in public quantised formats, and the dense ones they stand for.

The packing is written out here with numpy, from the formats' descriptions. Holds no tests.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from blockdiff.config import parse_config
from blockdiff.models.expert_layout import ONE_BY_ONE
from blockdiff.models.registry import FAMILIES

from .checkpoints import TINY

TRUNK: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "mask_token_id": 31,
    "eos_token_id": 1,
    "max_position_embeddings": 64,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "clover_moe": {
        **TINY,
        **TRUNK,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 32,
        "shared_expert_intermediate_size": 64,
    },
    "sdar": {
        **{key: value for key, value in TRUNK.items() if "expert" not in key and "moe" not in key},
        "model_type": "sdar",
        "intermediate_size": 96,
    },
    "llada2_moe": {
        **TRUNK,
        "model_type": "llada2_moe",
        "n_group": 2,
        "topk_group": 1,
        "num_shared_experts": 2,
        "first_k_dense_replace": 1,
        "intermediate_size": 96,
    },
    "diffusion_gemma": {
        **{key: value for key, value in TRUNK.items() if key != "mask_token_id"},
        "model_type": "diffusion_gemma",
        "layer_types": ["sliding_attention", "full_attention"],
        "global_head_dim": 64,
        "num_global_key_value_heads": 1,
        "sliding_window": 16,
        "top_k_experts": 2,
        "intermediate_size": 96,
        "canvas_length": 4,
        "tie_word_embeddings": True,
    },
}
PLAIN = ("embed_tokens", "word_embeddings", "lm_head", "mlp.gate", "shared_expert_gate")
PLAIN += ("in_proj_a", "in_proj_b", "router.proj")
SELF_CONDITIONING = "decoder.self_conditioning."
# the tensors of a module by the ends of their names, and the weight they stand for
Packed = tuple[dict[str, Tensor], Tensor]


@dataclass(frozen=True)
class PublicFormat:
    """How a config declares a format, and how a module of a shape is written in it."""

    declared: dict[str, Any]
    pack: Callable[[np.random.Generator, int, int], Packed]


def into_words(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned numbers [rows, columns] -> int32 [rows, columns * bits / 32], first one lowest."""
    count = 32 // bits
    words = np.zeros((numbers.shape[0], numbers.shape[1] // count), dtype=np.uint32)
    for place in range(count):
        words |= numbers[:, place::count].astype(np.uint32) << np.uint32(bits * place)
    return words.view(np.int32)


def packed_integers(bits: int, group: int | None) -> Callable[..., Packed]:
    def pack(random: np.random.Generator, rows: int, columns: int) -> Packed:
        half, size = 1 << (bits - 1), columns if group is None else group
        numbers = random.integers(-half, half, (rows, columns))
        scale = random.uniform(0.5, 1.5, (rows, columns // size)) * 0.4 / half
        scale = torch.from_numpy(scale).bfloat16()
        weight = numbers * np.repeat(scale.double().numpy(), size, axis=1)
        tensors = {
            "weight_packed": torch.from_numpy(into_words(numbers + half, bits)),
            "weight_scale": scale,
            "weight_shape": torch.tensor([rows, columns]),
        }
        return tensors, torch.from_numpy(weight).float()

    return pack


def plain_values(kind: torch.dtype, strategy: str) -> Callable[..., Packed]:
    def pack(random: np.random.Generator, rows: int, columns: int) -> Packed:
        numbers = random.uniform(-1, 1, (rows, columns))
        values = torch.from_numpy(numbers * (127 if kind == torch.int8 else 300)).to(kind)
        shape = (rows, 1) if strategy == "channel" else (1,)
        scale = torch.from_numpy(random.uniform(0.5, 1.5, shape)).float() * 0.5 / 300
        return {"weight": values, "weight_scale": scale}, values.float() * scale

    return pack


def block_fp8(down: int, across: int) -> Callable[..., Packed]:
    def pack(random: np.random.Generator, rows: int, columns: int) -> Packed:
        values = torch.from_numpy(random.uniform(-300, 300, (rows, columns)))
        values = values.to(torch.float8_e4m3fn)
        shape = (-(-rows // down), -(-columns // across))
        scale = random.uniform(0.5, 1.5, shape).astype(np.float32) * np.float32(0.5 / 300)
        full = np.empty((rows, columns), dtype=np.float32)
        for row in range(rows):
            for column in range(columns):
                full[row, column] = scale[row // down, column // across]
        tensors = {"weight": values, "weight_scale_inv": torch.from_numpy(scale)}
        return tensors, values.float() * torch.from_numpy(full)

    return pack


def gptq(group: int, zero: int) -> Callable[..., Packed]:
    def pack(random: np.random.Generator, rows: int, columns: int) -> Packed:
        numbers = random.integers(0, 16, (columns, rows))
        scales = random.uniform(0.02, 0.08, (columns // group, rows)).astype(np.float16)
        # along the inputs: one word holds eight rows of the transposed weight
        qweight = into_words(numbers.T, 4).T.copy()
        zeros = np.full((columns // group, rows), zero)
        weight = (numbers - 8) * np.repeat(scales.astype(np.float64), group, axis=0)
        tensors = {
            "qweight": torch.from_numpy(qweight),
            "qzeros": torch.from_numpy(into_words(zeros, 4)),
            "scales": torch.from_numpy(scales),
            "g_idx": torch.arange(columns, dtype=torch.int32) // group,
        }
        return tensors, torch.from_numpy(weight.T.copy()).float()

    return pack


def compressed(layout: str, **weights: Any) -> dict[str, Any]:
    inputs = {"dynamic": True, "num_bits": 8} if layout == "float-quantized" else None
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*mlp\\.gate$", "re:.*_gate$", "re:.*in_proj_[ab]$"]
        + ["re:.*router", "re:.*self_conditioning"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"symmetric": True, "dynamic": False, **weights},
                "input_activations": inputs,
            }
        },
    }


def integers(bits: int, group: int | None) -> dict[str, Any]:
    strategy = "channel" if group is None else "group"
    return compressed(
        "pack-quantized", num_bits=bits, type="int", strategy=strategy, group_size=group
    )


INT8, FLOAT8 = torch.int8, torch.float8_e4m3fn
FORMATS = {
    "int4": PublicFormat(integers(4, 32), packed_integers(4, 32)),
    "int4-channel": PublicFormat(integers(4, None), packed_integers(4, None)),
    "int8-packed": PublicFormat(integers(8, 32), packed_integers(8, 32)),
    "int8": PublicFormat(
        compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
        plain_values(INT8, "channel"),
    ),
    "fp8": PublicFormat(
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        plain_values(FLOAT8, "channel"),
    ),
    "fp8-tensor": PublicFormat(
        compressed("float-quantized", num_bits=8, type="float", strategy="tensor"),
        plain_values(FLOAT8, "tensor"),
    ),
    "fp8-block": PublicFormat(
        {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [24, 48],
            "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]
            + ["model.layers.1.mlp.gate", "model.layers.0.linear_attn.in_proj_a"]
            + ["model.layers.0.linear_attn.in_proj_b"]
            + [f"model.layers.{n}.mlp.shared_expert_gate" for n in range(2)]
            + [f"model.decoder.layers.{n}.router.proj" for n in range(2)]
            + ["model.decoder.self_conditioning"],
        },
        block_fp8(24, 48),
    ),
    "gptq": PublicFormat(
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True},
        gptq(32, 7),
    ),
    "gptq-v2": PublicFormat(
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"},
        gptq(32, 8),
    ),
}


def write_pair(root: Path, family: str, public: PublicFormat) -> tuple[Path, Path]:
    """A checkpoint in a public format, and one with the dequantised weights in float32."""
    random, config = np.random.default_rng(0), CONFIGS[family]
    quantised: dict[str, Tensor] = {}
    dense: dict[str, Tensor] = {}
    torch.manual_seed(0)
    for name, shape in FAMILIES[family].shapes(parse_config(config), ONE_BY_ONE).items():
        module = name.removesuffix(".weight")
        full = module if module.startswith("lm_head") else f"model.{module}"
        is_plain = module.endswith(PLAIN) or module.startswith(SELF_CONDITIONING)
        if len(shape) == 2 and name.endswith(".weight") and not is_plain:
            tensors, weight = public.pack(random, *shape)
            quantised |= {f"{full}.{end}": tensor for end, tensor in tensors.items()}
            dense[full + ".weight"] = weight
        else:
            own = full + name[len(module) :]
            quantised[own] = dense[own] = torch.randn(shape) * 0.3
    folders = root / "quantised", root / "dense"
    declared = {**config, "quantization_config": public.declared}
    for folder, tensors, own_config in zip(
        folders, (quantised, dense), (declared, config), strict=True
    ):
        folder.mkdir(parents=True)
        save_file(tensors, str(folder / "model.safetensors"))
        (folder / "config.json").write_text(json.dumps(own_config))
    return folders
