"""Configuration of the served models: config.pbtxt parameters first, then environment variables.

Built once when a model starts, checked there and never changed. Knows no request.
"""

import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from blockdiff.errors import ConfigError, RequestError
from blockdiff.kernel_choice import read_choices
from blockdiff.serving.fields import (
    MAX_LIST_ITEMS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_WORD_CHARACTERS,
    MAX_STOP_WORDS,
)
from blockdiff.serving.sampling_fields import read_ramp
from blockdiff.text.tool_calls import FORMS
from blockdiff.weights.identity import NO_MANIFEST

ENVIRONMENT = {
    "model": "BLOCKDIFF_MODEL",
    "slots": "BLOCKDIFF_SLOTS",
    "threads": "BLOCKDIFF_THREADS",
    "max_context": "BLOCKDIFF_MAX_CONTEXT",
    "tensor_parallel": "BLOCKDIFF_TENSOR_PARALLEL",
    "kernels": "BLOCKDIFF_KERNELS",
    "load_aware": "BLOCKDIFF_LOAD_AWARE",
    "tool_form": "BLOCKDIFF_TOOL_FORM",
    "relay_socket": "BLOCKDIFF_RELAY_SOCKET",
    "heartbeat_file": "BLOCKDIFF_HEARTBEAT_FILE",
    "verify": "BLOCKDIFF_VERIFY",
}
# Read elsewhere in this project; docs/env.md says where.
_OTHER_VARIABLES = frozenset(
    {
        "BLOCKDIFF_CACHE_DIR",
        "BLOCKDIFF_PYTHONPATH",
        "BLOCKDIFF_TEST_CHECKPOINT",
        "BLOCKDIFF_URL",
    }
)
# Parameters that Triton or its Python backend reads itself.
_FOREIGN = frozenset({"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS"})


@dataclass(frozen=True)
class Settings:
    """All settings of the repository; every model reads the few it needs."""

    model: Path
    relay_socket: Path
    heartbeat_file: Path | None = None
    verify: str = "yes"  # whether weights are checked before they are read; "done": they have been
    manifest_sha256: str | None = None  # of the only manifest that may be served
    slots: int = 8
    threads: int | None = None
    max_context: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    deterministic: bool = False
    kernels: str | None = None  # which implementations run; None: auto
    cuda_graphs: bool | None = None  # whether rounds are captured and replayed; None: if possible
    tensor_parallel: int = 1
    tensor_parallel_timeout_seconds: float = 60.0
    prefill_token_budget: int = 512
    max_output_tokens: int = 4096
    kv_cache_bytes: int | None = None
    page_length: int | None = None
    prefix_cache: bool = True
    snapshot_bytes: int | None = None
    snapshot_interval: int = 512
    truncate_last_block: bool = False
    load_aware: bool = False  # whether quality "balanced" gives way while requests wait
    load_aware_lowest_threshold: float = 0.7
    load_aware_fewest_steps: float = 0.5  # share of a request's own steps
    expert_statistics_interval: int = 16
    default_max_tokens: int = 256
    stop_ramp: str = ""  # of requests that name none; JSON as in the field of the same name
    think_end_ramp: str = ""
    max_prompt_bytes: int = 4 << 20
    max_stop_words: int = MAX_STOP_WORDS
    max_stop_word_characters: int = MAX_STOP_WORD_CHARACTERS
    default_timeout_seconds: float = 600.0
    drain_seconds: float = 20.0
    text_input_special_tokens: str = "text"
    tool_form: str | None = None  # how the model writes calls; None: as the checkpoint suggests
    ensemble: str = "ensemble"


def _integer(low: int, high: int) -> Callable[[str, str], Any]:
    def read(name: str, text: str) -> int:
        # int() takes other digits too, and refuses very long numbers in its own words
        if not re.fullmatch("[0-9]{1,18}", text) or not low <= int(text) <= high:
            raise ConfigError(f"{name}: got {text!r}, allowed {low} to {high}")
        return int(text)

    return read


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value <= 86_400.0:
        raise ConfigError(f"{name}: got {text!r}, allowed more than 0 and up to 86400 seconds")
    return value


def _share(low: float) -> Callable[[str, str], Any]:
    def read(name: str, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not low <= value <= 1.0:
            raise ConfigError(f"{name}: got {text!r}, allowed {low:g} to 1")
        return value

    return read


def _choice(*allowed: str) -> Callable[[str, str], Any]:
    def read(name: str, text: str) -> str:
        if text not in allowed:
            raise ConfigError(f"{name}: got {text!r}, allowed {' or '.join(allowed)}")
        return text

    return read


def _yes_or_no(name: str, text: str) -> bool:
    return bool(_choice("yes", "no")(name, text) == "yes")


def _kernels(name: str, text: str) -> str:
    read_choices(name, text)
    return text


def _ramp(name: str, text: str) -> str:
    try:
        read_ramp(name, text)
    except RequestError as error:
        raise ConfigError(str(error)) from error
    return text


def _digest(name: str, text: str) -> str:
    if text != NO_MANIFEST and not re.fullmatch("[0-9a-f]{64}", text):
        raise ConfigError(f"{name}: got {text!r}, allowed 64 hex digits or {NO_MANIFEST!r}")
    return text


_READERS: dict[str, Callable[[str, str], Any]] = {
    "model": lambda name, text: Path(text),
    "relay_socket": lambda name, text: Path(text),
    "heartbeat_file": lambda name, text: Path(text),
    "verify": _choice("yes", "no", "done"),
    "manifest_sha256": _digest,
    "slots": _integer(1, 4096),
    "threads": _integer(1, 1024),
    "max_context": _integer(1, 1 << 24),
    "device": _choice("cpu", "cuda"),
    "dtype": _choice("float32", "bfloat16", "int8", "int4", "fp8", "w8a8"),
    "deterministic": _yes_or_no,
    "kernels": _kernels,
    "cuda_graphs": _yes_or_no,
    "tensor_parallel": _integer(1, 64),
    "tensor_parallel_timeout_seconds": _seconds,
    "prefill_token_budget": _integer(1, 1 << 20),
    "max_output_tokens": _integer(1, 1 << 24),
    "kv_cache_bytes": _integer(1, 1 << 50),
    "page_length": _integer(1, 1 << 20),
    "prefix_cache": _yes_or_no,
    "snapshot_bytes": _integer(0, 1 << 50),
    "snapshot_interval": _integer(1, 1 << 24),
    "truncate_last_block": _yes_or_no,
    "load_aware": _yes_or_no,
    "load_aware_lowest_threshold": _share(0.0),
    "load_aware_fewest_steps": _share(0.01),
    "expert_statistics_interval": _integer(0, 1 << 20),
    "default_max_tokens": _integer(1, 1 << 24),
    "stop_ramp": _ramp,
    "think_end_ramp": _ramp,
    "max_prompt_bytes": _integer(1, 1 << 30),
    "max_stop_words": _integer(1, MAX_LIST_ITEMS),
    "max_stop_word_characters": _integer(1, MAX_STOP_CHARACTERS),
    "default_timeout_seconds": _seconds,
    "drain_seconds": _seconds,
    "text_input_special_tokens": _choice("text", "control"),
    "tool_form": _choice(*FORMS),
    "ensemble": lambda name, text: text,
}


def read_settings(
    model_config: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> Settings:
    """Merges the ``parameters`` of a parsed model configuration with the environment.

    An empty parameter counts as not given. Unknown parameters, unknown BLOCKDIFF_ variables and
    malformed values are refused.
    """
    _refuse_unknown_variables(environment)
    given = {
        name: str(entry.get("string_value", "")).strip()
        for name, entry in model_config.get("parameters", {}).items()
        if name not in _FOREIGN
    }
    known = {item.name for item in fields(Settings)}
    for name in given:
        if name not in known:
            raise ConfigError(f"parameters {name!r}: unknown; allowed {', '.join(sorted(known))}")
    values: dict[str, Any] = {}
    for name in known:
        source = f"parameters {name!r}" if given.get(name) else ENVIRONMENT.get(name, name)
        text = given.get(name) or environment.get(ENVIRONMENT.get(name, ""), "").strip()
        if text:
            values[name] = _READERS[name](source, text)
    if "model" not in values:
        raise ConfigError("BLOCKDIFF_MODEL: not set; give the checkpoint folder there")
    if values.get("verify") == "done" and "manifest_sha256" not in values:
        raise ConfigError("verify: 'done' needs manifest_sha256, the hash that was verified")
    if not values.get("load_aware", False):
        for name in sorted(values):
            if name.startswith("load_aware_"):
                raise ConfigError(f"{name}: only with load_aware 'yes'")
    # All stubs of one server have the same parent, so they agree on this name.
    default_socket = Path(tempfile.gettempdir()) / f"blockdiff-relay-{os.getppid()}.sock"
    values.setdefault("relay_socket", default_socket)
    return Settings(**values)


def verification_variable(environment: Mapping[str, str]) -> bool:
    """Whether BLOCKDIFF_VERIFY asks for verification; unset means yes."""
    name = ENVIRONMENT["verify"]
    read = _choice("yes", "no")
    return bool(read(name, environment.get(name, "").strip() or "yes") == "yes")


def _refuse_unknown_variables(environment: Mapping[str, str]) -> None:
    """A misspelt variable would otherwise leave a default in force without a word."""
    known = {*ENVIRONMENT.values(), *_OTHER_VARIABLES}
    for name in environment:
        if name.startswith("BLOCKDIFF_") and name not in known:
            allowed = ", ".join(sorted(ENVIRONMENT.values()))
            raise ConfigError(f"{name}: unknown variable; allowed {allowed}")


def settings_from_arguments(arguments: Mapping[str, str]) -> tuple[dict[str, Any], Settings]:
    """Parsed model configuration and settings from the ``args`` of ``initialize``."""
    model_config: dict[str, Any] = json.loads(arguments["model_config"])
    return model_config, read_settings(model_config)


def context_limit(settings: Settings) -> int | None:
    """Longest prompt plus answer in tokens as far as the settings and config.json tell."""
    path = settings.model / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable ({error}); give a checkpoint folder") from error
    limits = [settings.max_context, config.get("max_position_embeddings")]
    known = [limit for limit in limits if isinstance(limit, int)]
    return min(known) if known else None
