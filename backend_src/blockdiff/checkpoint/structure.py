"""A model's structure without its weights: every tensor on torch's meta device, of no memory.

Built by the same code as a loaded model, from the shapes that a checkpoint would have to hold.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockdiff.checkpoint.source import DenseSource
from blockdiff.config import AnyConfig
from blockdiff.models.expert_layout import FUSED, ExpertLayout
from blockdiff.models.group import ALONE
from blockdiff.models.registry import FAMILIES
from blockdiff.models.share import Share
from blockdiff.models.trunk import LanguageModel


@dataclass(frozen=True)
class _Shape:
    """A stored tensor that is nowhere."""

    shape: tuple[int, ...]

    def read_into(self, target: Tensor, place: tuple[slice, ...] = ()) -> None:
        assert target.is_meta, "there is nothing to read"


def meta_model(
    config: AnyConfig, dtype: torch.dtype = torch.float32, layout: ExpertLayout = FUSED
) -> LanguageModel:
    """The model of ``config`` in ``dtype``; it cannot run. Sizes: ``checkpoint.sizes``."""
    family = FAMILIES[config.model_type]
    shapes = family.shapes(config, layout)
    tensors = {name: _Shape(shape) for name, shape in shapes.items()}
    source = DenseSource(tensors, torch.device("meta"), dtype, family.float32)
    return family.build(config, source, Share(config, ALONE))
