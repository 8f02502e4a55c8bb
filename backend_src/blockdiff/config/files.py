"""JSON files of a checkpoint folder. Knows nothing of their keys."""

import json
from pathlib import Path
from typing import Any

from blockdiff.errors import ConfigError


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``, or a ConfigError that says what is wrong with the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: file not found") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as JSON ({error})") from None
    except RecursionError:
        raise ConfigError(f"{path}: cannot be read as JSON (nested too deeply)") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return value
