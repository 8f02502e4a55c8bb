"""Builds the model repository that a server run loads. Knows config.pbtxt text, not its meaning."""

import re
import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import blockdiff
from blockdiff.errors import ConfigError

ENGINE_MODEL = "block_diffusion"
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", ".git*")


def template_repository() -> Path:
    """The project's model repository: in the source tree, else as installed with the package."""
    source = Path(blockdiff.__file__).resolve().parents[2] / "model_repository"
    installed = Path(sysconfig.get_path("data")) / "share" / "blockdiff" / "model_repository"
    for folder in (source, installed):
        if (folder / ENGINE_MODEL / "config.pbtxt").exists():
            return folder
    raise ConfigError(
        f"model repository: found neither {source} nor {installed}; name one by --model-repository"
    )


def model_names(repository: Path) -> list[str]:
    """Folders of a repository that hold a model."""
    names = sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))
    if not names:
        raise ConfigError(f"model repository {repository}: no */config.pbtxt in it")
    return names


def build_repository(
    template: Path,
    target: Path,
    *,
    max_queue_size: int | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Path:
    """Copy ``template`` to ``target`` and fill in what is asked for in the engine's config."""
    names = model_names(template)
    shutil.copytree(template, target, ignore=_IGNORED)
    for name in names:
        # Git keeps no empty folders, and an ensemble's version folder is empty.
        (target / name / "1").mkdir(exist_ok=True)
    if max_queue_size is None and not parameters:
        return target
    path = target / ENGINE_MODEL / "config.pbtxt"
    if not path.exists():
        raise ConfigError(f"model repository {template}: no model {ENGINE_MODEL} to configure")
    text = path.read_text()
    if max_queue_size is not None:
        text = _set_queue_size(text, max_queue_size, path)
    for key, value in (parameters or {}).items():
        text = set_parameter(text, key, value)
    path.write_text(text)
    return target


def _set_queue_size(text: str, size: int, path: Path) -> str:
    changed, count = re.subn(r"\bmax_queue_size\s*:\s*\d+", f"max_queue_size: {size}", text)
    if not count:
        raise ConfigError(f"--max-queue-size: {path.name} of {ENGINE_MODEL} has no queue policy")
    return changed


def set_parameter(text: str, key: str, value: str) -> str:
    """Set one ``parameters`` entry of a config.pbtxt, replacing an entry of the same key."""
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    pattern = re.compile(
        rf'(key\s*:\s*"{re.escape(key)}"\s*,?\s*value\s*:?\s*\{{\s*string_value\s*:\s*)"[^"]*"'
    )
    changed, count = pattern.subn(lambda found: f'{found.group(1)}"{quoted}"', text)
    if count:
        return changed
    entry = f'parameters {{ key: "{key}" value {{ string_value: "{quoted}" }} }}\n'
    return text.rstrip("\n") + "\n" + entry
