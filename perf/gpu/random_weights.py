"""Models of any size with random weights, made where they are used. Knows nothing of files."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from blockdiff.checkpoint.quantized_source import make_source
from blockdiff.config import parse_config
from blockdiff.models.expert_layout import ONE_BY_ONE
from blockdiff.models.group import ALONE
from blockdiff.models.registry import FAMILIES
from blockdiff.models.share import Share
from blockdiff.models.trunk import LanguageModel

# of norms that add 1 to their weight, decays and biases
SMALL = 0.05


@dataclass(frozen=True)
class RandomTensor:
    """A stored tensor that is drawn when it is read: matrices keep the size of what they multiply,
    vectors are small or lie around 1."""

    name: str
    shape: tuple[int, ...]
    device: torch.device
    dtype = "BF16"

    def read(self, place: tuple[slice, ...] = ()) -> Tensor:
        """The tensor, or the ``place`` in it, on the device."""
        spans = [range(*own.indices(size)) for own, size in zip(place, self.shape, strict=False)]
        sizes = [len(span) for span in spans] + list(self.shape[len(spans) :])
        target = torch.empty(sizes, device=self.device, dtype=torch.bfloat16)
        self.read_into(target)
        return target

    def read_into(self, target: Tensor, place: tuple[slice, ...] = ()) -> None:
        """Fill ``target``, whatever its strides."""
        if len(self.shape) > 1:
            scale = 1.0 if "embed_tokens" in self.name else 1 / math.sqrt(self.shape[-1])
            target.normal_(0.0, scale)
        elif self.name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight")):
            target.normal_(0.0, SMALL)
        else:
            target.uniform_(0.75, 1.25)


def random_model(
    keys: dict[str, Any], device: torch.device, dtype: str = "bfloat16", seed: int = 0
) -> LanguageModel:
    """The model of a ``config.json`` with ``keys``; int8, int4 and fp8 quantise what is drawn."""
    config = parse_config(keys)
    family = FAMILIES[config.model_type]
    shapes = family.shapes(config, ONE_BY_ONE)
    tensors: Any = {name: RandomTensor(name, shape, device) for name, shape in shapes.items()}
    kind = torch.float32 if dtype == "float32" else torch.bfloat16
    torch.manual_seed(seed)
    source = make_source(None, dtype, (tensors, device, kind, family.float32))
    return family.build(config, source, Share(config, ALONE))
