"""What a plan needs to know of a model: its shape, and parameters by part.

Knows nothing of devices or of requests.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from blockdiff.config import load_config, parse_config, read_json
from blockdiff.config.quantization import parse_quantization
from blockdiff.errors import ConfigError
from blockdiff.planning.families import describe
from blockdiff.planning.quantised import (
    Quantised,
    count_projections,
    count_stored,
    stored_unit,
)
from blockdiff.planning.shape import ModelShape
from blockdiff.weights.groups import SCALES, group_of
from blockdiff.weights.headers import INDEX, SUFFIX, TensorHeader, read_headers
from blockdiff.weights.packed import count_weights, values_per_word

UNUSED = "not used for text"
# Names and shapes of the preview tensors of published checkpoints may differ a little from ours.
_TOLERANCE = 0.01


@dataclass(frozen=True)
class PlannedModel:
    """A model on paper."""

    shape: ModelShape
    parts: dict[str, int]  # part -> parameters
    has_headers: bool  # counted in the safetensors headers, not only derived from the config
    stored_kind: str | None = None  # int8, int4 or fp8 where projections are stored so
    stored: dict[str, Quantised] = field(default_factory=dict)  # by part, what is stored so

    @property
    def parameters(self) -> int:
        return sum(self.parts.values())

    @property
    def active_parameters(self) -> int:
        """Parameters that one token's forward uses; the embedding's look-up is not counted."""
        looked_up = 0 if self.shape.has_tied_head else self.parts.get("embedding", 0)
        resting = 0
        if self.shape.experts is not None:
            own = self.shape.experts
            resting = self.parts.get("experts", 0) * (own.count - own.chosen) // own.count
        return self.parameters - resting - looked_up


def read_model(path: Path) -> PlannedModel:
    """Read a checkpoint folder (weights may be absent) or a config.json; tensors are not read."""
    config_path = path if path.is_file() else path / "config.json"
    shape = describe(parse_config(read_json(path)) if path.is_file() else load_config(path))
    stored = parse_quantization(read_json(config_path))
    kind = None if stored is None else stored.kind
    has_headers = not path.is_file() and ((path / INDEX).exists() or any(path.glob(f"*{SUFFIX}")))
    if not has_headers:
        counted = {} if stored is None else count_projections(shape, stored_unit(stored))
        return PlannedModel(shape, shape.parts, False, kind, counted)
    tensors = _own_tensors(path, shape)
    groups = _count(tensors, shape, values_per_word(stored))
    found, wanted = sum(groups.values()), sum(shape.parts.values())
    if abs(found - wanted) > _TOLERANCE * wanted:
        raise ConfigError(
            f"{path}: the weights hold {found:,} parameters, config.json asks for {wanted:,}; "
            "take config and weights of the same model"
        )
    counted = {} if stored is None else count_stored(tensors, stored)
    return PlannedModel(shape, groups, True, kind, counted)


def _own_tensors(path: Path, shape: ModelShape) -> list[TensorHeader]:
    """Headers, without those of tensors that repeat others."""
    copies = re.compile(shape.copied_names or r"(?!)")
    return [tensor for tensor in read_headers(path) if not copies.match(tensor.name)]


def _count(tensors: list[TensorHeader], shape: ModelShape, per_word: int) -> dict[str, int]:
    """Parameters by part in the headers; a packed int32 holds ``per_word`` of them."""
    groups: dict[str, int] = {}
    for tensor in tensors:
        group = group_of(tensor.name)
        groups[group] = groups.get(group, 0) + count_weights(tensor, per_word)
    for name in (UNUSED, SCALES, *shape.unused_parts):
        groups.pop(name, None)
    return groups
