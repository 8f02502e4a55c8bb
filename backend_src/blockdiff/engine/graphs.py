"""Whether an engine captures its rounds, and what it captures them with.

Knows the engine's settings, its model and its device; knows nothing of rounds.
"""

from typing import NamedTuple

from blockdiff.engine.captured_rounds import CapturedRounds
from blockdiff.engine.config import EngineConfig
from blockdiff.engine.memory import step_bytes
from blockdiff.engine.recorder import CudaRecorder, Recorder
from blockdiff.engine.step_shapes import step_shapes
from blockdiff.errors import ConfigError
from blockdiff.models.base import BlockDiffusionModel, ModelCaches
from blockdiff.models.round_shape import RoundShape
from blockdiff.models.trunk import LanguageModel
from blockdiff.scheduler import MemoryRules
from blockdiff_kernels.implementation import OPS, TRITON, wanted_for


class GraphPlan(NamedTuple):
    """What an engine captures."""

    model: LanguageModel
    shapes: tuple[RoundShape, ...]
    recorder: Recorder
    is_required: bool
    """Whether the engine is of no use without."""

    @property
    def nbytes(self) -> int:
        """About the device memory that it takes."""
        return step_bytes(self.shapes[-1].rows, self.model.hidden_size, self.model.dtype)

    def captured(self, caches: ModelCaches) -> CapturedRounds:
        """What captures rounds over ``caches``."""
        return CapturedRounds(self.model, caches, self.shapes, self.recorder, self.is_required)


def plan_graphs(
    model: BlockDiffusionModel,
    config: EngineConfig,
    memory: MemoryRules,
    recorder: Recorder | None = None,
) -> GraphPlan | None:
    """What is captured by ``config``; None: nothing is.

    ``recorder``: what to capture with, whatever the settings say. ConfigError when graphs were
    asked for and cannot be.
    """
    is_required = recorder is not None or config.cuda_graphs is True
    if recorder is None:
        if config.cuda_graphs is False:
            return None
        reason = why_no_graphs(model, config)
        if reason is not None:
            if config.cuda_graphs:
                raise ConfigError(f"cuda_graphs: True is not possible: {reason}")
            return None
        recorder = CudaRecorder(model.device)
    assert isinstance(model, LanguageModel), "only whole models can be captured"
    sizes = (config.graph_blocks, config.max_slots, memory.pages_per_slot)
    return GraphPlan(model, step_shapes(model.info, *sizes), recorder, is_required)


def why_no_graphs(model: BlockDiffusionModel, config: EngineConfig) -> str | None:
    """What keeps rounds of ``model`` from being captured, and what to do; None: nothing."""
    if model.device.type != "cuda":
        return "it needs a GPU; load the model on cuda"
    if config.deterministic:
        return "rounds are filled up, which deterministic is not made for; leave it out"
    if not isinstance(model, LanguageModel) or model.group.size > 1:
        return "ranks of several processes do not wait for one another; leave out tensor_parallel"
    others = [op for op in OPS if wanted_for(op, model.device.type) is not TRITON]
    if others:
        return f"not all kernels are Triton's ({', '.join(others)}); leave out kernels"
    return None
