"""Write a trained demo model as a Hugging Face style `clover_moe` folder."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from blockdiff.weights.manifest import write_manifest
from demo.model import DemoModel
from demo.streams import BLOCK
from demo.tasks import held_out_prompts
from demo.tokenizer import save_text_files, token_id

FLOAT32 = ("A_log", "linear_attn.norm.weight")  # kept in float32, as real checkpoints do
SHARDS = 2
INITIALISED = "trained by make train"


def config_json(model: DemoModel, ids: dict[str, int]) -> dict[str, object]:
    c = model.config
    sizes = {k: v for k, v in vars(c).items() if k not in ("rope_theta", "partial_rotary_factor")}
    return {
        "architectures": ["CloverMoeModelLM"],
        "model_type": "clover_moe",
        **sizes,
        "layer_types": [c.layer_type(i) for i in range(c.num_hidden_layers)],
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": c.rope_theta,
            "partial_rotary_factor": c.partial_rotary_factor,
        },
        "attention_bias": False,
        "block_size": BLOCK,
        "block_anchor": "prompt_end",
        "mask_token_id": ids["<|mask|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "num_shared_experts": 1,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
        "dtype": "bfloat16",
        "decoding": {"algorithm": "low_confidence", "threshold": 0.9},
    }


def write_eval_prompts(folder: Path) -> None:
    """The held-out prompts, one JSON object a line, as `blockdiff eval` reads them."""
    with (folder / "eval_prompts.jsonl").open("w", encoding="utf-8") as file:
        for sample in held_out_prompts():
            line = {
                "task": sample.task,
                "messages": sample.messages(),
                "tools": sample.tool_specs(),
                "enable_thinking": sample.enable_thinking,
                "expected": sample.expected,
                "check": sample.check,
            }
            kept = {key: value for key, value in line.items() if value is not None}
            file.write(json.dumps(kept, ensure_ascii=False) + "\n")


def export_checkpoint(model: DemoModel, folder: Path) -> None:
    """Two safetensors shards with an index, config, generation_config and the text files."""
    tokenizer = save_text_files(folder)
    write_eval_prompts(folder)
    ids = {t: token_id(tokenizer, t) for t in ("<|mask|>", "<|im_end|>", "<|endoftext|>")}
    (folder / "config.json").write_text(json.dumps(config_json(model, ids), indent=2) + "\n")
    generation = {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]]}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tensors = {
        name: t.detach()
        .to(torch.float32 if name.endswith(FLOAT32) else torch.bfloat16)
        .contiguous()
        for name, t in model.state_dict().items()
    }
    half = sum(t.numel() for t in tensors.values()) / SHARDS
    shards: list[dict[str, torch.Tensor]] = [{} for _ in range(SHARDS)]
    seen = 0
    for name, tensor in tensors.items():
        shards[min(int(seen // half), SHARDS - 1)][name] = tensor
        seen += tensor.numel()
    index: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{SHARDS:05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)
        index |= dict.fromkeys(shard, file)
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    count = sum(t.numel() for t in tensors.values())
    metadata = {"total_size": total, "total_parameters": count}
    text = json.dumps({"metadata": metadata, "weight_map": index}, indent=1)
    (folder / "model.safetensors.index.json").write_text(text + "\n")
    write_manifest(folder, initialised=INITIALISED)
