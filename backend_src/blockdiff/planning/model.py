"""What a plan needs to know of a model: its shape, and parameters by part.

Knows nothing of devices or of requests.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from blockdiff.config import load_config, parse_config, read_json
from blockdiff.errors import ConfigError
from blockdiff.planning.families import describe
from blockdiff.planning.shape import ModelShape
from blockdiff.weights.groups import sum_groups
from blockdiff.weights.headers import INDEX, SUFFIX, read_headers

UNUSED = "not used for text"
# Names and shapes of the preview tensors of published checkpoints may differ a little from ours.
_TOLERANCE = 0.01


@dataclass(frozen=True)
class PlannedModel:
    """A model on paper."""

    shape: ModelShape
    parts: dict[str, int]  # part -> parameters
    has_headers: bool  # counted in the safetensors headers, not only derived from the config

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
    if path.is_file():
        shape = describe(parse_config(read_json(path)))
        return PlannedModel(shape, shape.parts, has_headers=False)
    shape = describe(load_config(path))
    if not (path / INDEX).exists() and not any(path.glob(f"*{SUFFIX}")):
        return PlannedModel(shape, shape.parts, has_headers=False)
    copies = re.compile(shape.copied_names or r"(?!)")
    stored_tensors = [tensor for tensor in read_headers(path) if not copies.match(tensor.name)]
    groups = {group.name: group.parameters for group in sum_groups(stored_tensors)}
    for name in (UNUSED, *shape.unused_parts):
        groups.pop(name, None)
    stored, wanted = sum(groups.values()), sum(shape.parts.values())
    if abs(stored - wanted) > _TOLERANCE * wanted:
        raise ConfigError(
            f"{path}: the weights hold {stored:,} parameters, config.json asks for {wanted:,}; "
            "take config and weights of the same model"
        )
    return PlannedModel(shape, groups, has_headers=True)
