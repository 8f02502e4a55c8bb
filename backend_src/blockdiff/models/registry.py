"""Which class serves which family. Knows nothing of files."""

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from blockdiff.models.diffusion_gemma import DiffusionGemmaModel
from blockdiff.models.diffusion_gemma_weights import expected_shapes as diffusion_gemma_shapes
from blockdiff.models.diffusion_gemma_weights import is_tied_copy
from blockdiff.models.expert_layout import ExpertLayout
from blockdiff.models.hybrid import HybridModel
from blockdiff.models.llada2_moe import LLADA2_FLOAT32_SUFFIXES, Llada2MoeModel
from blockdiff.models.qwen3 import Qwen3Model
from blockdiff.models.sdar import SdarModel
from blockdiff.models.share import Share
from blockdiff.models.source import WeightSource
from blockdiff.models.trunk import LanguageModel
from blockdiff.models.weights import (
    FLOAT32_SUFFIXES,
    Shapes,
    expected_shapes,
    is_spare,
)


@dataclass(frozen=True)
class Family:
    """How to check and assemble a checkpoint; configs and models of one line belong together."""

    shapes: Callable[[Any, ExpertLayout], Shapes]  # config, how experts are stored
    build: Callable[[Any, WeightSource, Share], LanguageModel]  # config: ``share.local()``
    float32: tuple[str, ...] = ()  # ends of names kept in float32 in every model dtype
    # config, a stored name, the model's names -> whether it may be there without being used
    unused: Callable[[Any, str, Container[str]], bool] = lambda config, name, needed: False


FAMILIES: dict[str, Family] = {
    "clover_moe": Family(expected_shapes, HybridModel, FLOAT32_SUFFIXES, is_spare),
    "qwen3_5_moe": Family(expected_shapes, HybridModel, FLOAT32_SUFFIXES),
    "llada2_moe": Family(Llada2MoeModel.shapes, Llada2MoeModel, LLADA2_FLOAT32_SUFFIXES),
    "sdar": Family(SdarModel.shapes, SdarModel),
    "sdar_moe": Family(SdarModel.shapes, SdarModel),
    "qwen3": Family(Qwen3Model.shapes, Qwen3Model),
    "qwen3_moe": Family(Qwen3Model.shapes, Qwen3Model),
    "diffusion_gemma": Family(diffusion_gemma_shapes, DiffusionGemmaModel, unused=is_tied_copy),
}
