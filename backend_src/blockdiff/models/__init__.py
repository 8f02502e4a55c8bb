"""Model families behind one interface (``base.py``), chosen by ``model_type`` (``registry.py``)."""

from blockdiff.model_info import NO_MASK_TOKEN
from blockdiff.models.base import (
    BlockDiffusionModel,
    ModelCaches,
    ModelInfo,
    RoundBatch,
    Segment,
)

__all__ = [
    "NO_MASK_TOKEN",
    "BlockDiffusionModel",
    "ModelCaches",
    "ModelInfo",
    "RoundBatch",
    "Segment",
]
