"""Start-up checks that refuse an unsafe model configuration and name the file and the line.

Each rule protects order, admission or exactly-once delivery; see docs/architecture.md.
Knows Triton's configuration fields; knows nothing of requests.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blockdiff.errors import ConfigError


def check_preprocessing(config: Mapping[str, Any], path: Path) -> None:
    _require_batch_of_one(config, path)
    _require(not _is_decoupled(config), path, "decoupled", "preprocessing answers once")


def check_engine(config: Mapping[str, Any], path: Path) -> None:
    """One instance owns the engine; Triton's own queue admits one request at a time."""
    _require_batch_of_one(config, path)
    _require(_is_decoupled(config), path, "decoupled", "the engine must be decoupled: true")
    _require_one_instance(config, path)
    batching = config.get("dynamic_batching")
    _require(
        batching is not None,
        path,
        "max_batch_size",
        "dynamic_batching must be given: without it there is no queue policy and no priority",
    )
    _require(
        not (batching or {}).get("preserve_ordering"),
        path,
        "preserve_ordering",
        "preserve_ordering must be false: a slow request would hold back all others",
    )
    _require("sequence_batching" not in config, path, "sequence_batching", "must not be given")


def check_postprocessing(config: Mapping[str, Any], path: Path) -> None:
    """Blocks of one request stay in order only on one instance without batching."""
    _require_batch_of_one(config, path)
    _require(
        not _is_decoupled(config),
        path,
        "decoupled",
        "postprocessing must not be decoupled: its responses would lose their order",
    )
    _require_one_instance(config, path)
    for name in ("dynamic_batching", "sequence_batching"):
        _require(
            config.get(name) is None,
            path,
            name,
            f"{name} must not be given: blocks of one request could overtake each other",
        )


def check_unary(config: Mapping[str, Any], path: Path) -> None:
    _require_batch_of_one(config, path)
    _require(not _is_decoupled(config), path, "decoupled", "unary answers once")


def line_of(path: Path, word: str) -> int | None:
    """Number of the first line of ``path`` that names ``word`` outside a comment."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    for number, line in enumerate(lines, start=1):
        if pattern.search(line.partition("#")[0]):
            return number
    return None


def _require(holds: bool, path: Path, word: str, text: str) -> None:
    if holds:
        return
    line = line_of(path, word)
    place = f"{path} line {line}" if line else str(path)
    raise ConfigError(f"{place}: {text}")


def _require_batch_of_one(config: Mapping[str, Any], path: Path) -> None:
    size = int(config.get("max_batch_size", 0))
    _require(size == 1, path, "max_batch_size", f"max_batch_size: got {size}, allowed 1")


def _require_one_instance(config: Mapping[str, Any], path: Path) -> None:
    groups = config.get("instance_group") or []
    count = sum(int(group.get("count", 1)) for group in groups)
    kinds = {group.get("kind", "KIND_AUTO") for group in groups}
    _require(
        count == 1 and kinds == {"KIND_CPU"},
        path,
        "instance_group" if line_of(path, "count") is None else "count",
        f"instance_group: got {count} of {', '.join(sorted(kinds)) or 'the default kind'}, "
        "allowed exactly 1 of KIND_CPU",
    )


def _is_decoupled(config: Mapping[str, Any]) -> bool:
    policy = config.get("model_transaction_policy") or {}
    return bool(policy.get("decoupled", False))
