"""A copy of the tiny golden checkpoint with a tokenizer and a chat template, for the commands."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

FIXTURES = Path(__file__).parents[1] / "golden" / "fixtures"
CHECKPOINT = FIXTURES / "clover_moe" / "layers4_block8"
CANVAS_CHECKPOINT = FIXTURES / "diffusion_gemma" / "canvas8"
SPECIAL = {120: "<|im_start|>", 124: "<|im_end|>", 125: "<think>", 126: "</think>", 127: "<|mask|>"}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}<|im_start|>"
    "{% if enable_thinking %}<think>{% endif %}"
)


def make_broken(source: Path, folder: Path) -> Path:
    """A copy whose every number is huge, so that each request overflows inside the engine."""
    shutil.copytree(source, folder)
    for shard in folder.glob("*.safetensors"):
        weights = load_file(shard)
        save_file({name: torch.full_like(w, 1e38) for name, w in weights.items()}, shard)
    return folder


def make_checkpoint(folder: Path, source: Path = CHECKPOINT) -> Path:
    """``source`` with one token per printable ASCII character (id = code - 32), at byte level."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(source / name, folder / name)
    letters = {("Ġ" if code == 32 else chr(code)): code - 32 for code in range(32, 127)}
    spare = {f"spare{number}": number for number in range(95, 128) if number not in SPECIAL}
    definition: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": number not in (125, 126),
            }
            for number, text in SPECIAL.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": False,
        },
        "post_processor": None,
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {**letters, **spare, **{t: n for n, t in SPECIAL.items()}},
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(definition), "utf-8")
    (folder / "chat_template.jinja").write_text(TEMPLATE, "utf-8")
    return folder
