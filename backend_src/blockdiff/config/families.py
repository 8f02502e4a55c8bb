"""Which family a ``config.json`` is of, and who reads it. Knows nothing of keys or of tensors."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from blockdiff.config.attention import AttentionConfig
from blockdiff.config.diffusion_gemma import DiffusionGemmaConfig, parse_diffusion_gemma
from blockdiff.config.files import read_json
from blockdiff.config.hybrid import HybridConfig, parse_clover, parse_qwen3_5
from blockdiff.config.keys import Keys, check_unread_keys
from blockdiff.config.llada2 import parse_llada2
from blockdiff.config.quantization import parse_quantization
from blockdiff.config.qwen3 import parse_qwen3, parse_qwen3_moe
from blockdiff.config.sdar import parse_sdar, parse_sdar_moe
from blockdiff.errors import ConfigError

AnyConfig = HybridConfig | AttentionConfig | DiffusionGemmaConfig
# config.json without its text_config, generation_config.json -> a checked config
Parser = Callable[[Keys, Mapping[str, Any]], AnyConfig]

# by model_type
PARSERS: dict[str, Parser] = {
    "clover_moe": parse_clover,
    "qwen3_5_moe": parse_qwen3_5,
    "qwen3_5_moe_text": parse_qwen3_5,
    "llada2_moe": parse_llada2,
    "sdar": parse_sdar,
    "sdar_moe": parse_sdar_moe,
    "qwen3": parse_qwen3,
    "qwen3_moe": parse_qwen3_moe,
    "diffusion_gemma": parse_diffusion_gemma,
    "diffusion_gemma_text": parse_diffusion_gemma,
}


def load_config(model_dir: str | Path) -> AnyConfig:
    """Read ``config.json`` (and the eos ids of ``generation_config.json``) of a checkpoint."""
    return _parse(*_read_files(Path(model_dir)))[0]


def unused_keys(model_dir: str | Path) -> tuple[str, ...]:
    """Keys of ``config.json`` that nothing reads and that nobody knows to be harmless."""
    return _parse(*_read_files(Path(model_dir)))[1].unread()


def parse_config(
    config: Mapping[str, Any], generation: Mapping[str, Any] | None = None
) -> AnyConfig:
    """Check a config mapping (a nested ``text_config`` is accepted) and freeze it."""
    return _parse(config, generation or {})[0]


def _read_files(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if not folder.is_dir():
        raise ConfigError(f"model folder {folder}: not found; give a folder with config.json")
    generation_path = folder / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    return read_json(folder / "config.json"), generation


def _parse(config: Mapping[str, Any], generation: Mapping[str, Any]) -> tuple[AnyConfig, Keys]:
    """The config, and the keys with what was read of them."""
    declared = config.get("model_type")
    parser = PARSERS.get(declared) if isinstance(declared, str) else None
    if parser is None:
        raise ConfigError(
            f"config.json: model_type {declared!r} is not known; allowed: {sorted(PARSERS)}"
        )
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise ConfigError("config.json: text_config must be an object")
    keys = Keys({**{k: v for k, v in config.items() if k != "text_config"}, **text})
    parsed = parser(keys, generation)
    parse_quantization(config)
    keys.get("quantization_config")
    check_unread_keys(keys, parsed.model_type)
    return parsed, keys
