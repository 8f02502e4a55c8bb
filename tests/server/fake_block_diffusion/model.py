"""The real block_diffusion model over the scripted engine. Stands in for 1/model.py in tests."""

import triton_python_backend_utils as pb_utils
from fake_engine import FakeEngine

from blockdiff.engine import EngineConfig, EngineLoop
from blockdiff.serving.block_diffusion import BlockDiffusionModel, ServedEngine
from blockdiff.serving.settings import Settings
from blockdiff.text import Tokenizer


class TritonPythonModel(BlockDiffusionModel):
    pb_utils = pb_utils

    def build_engine(self, settings: Settings) -> ServedEngine:
        config = EngineConfig(max_slots=settings.slots)
        engine = FakeEngine(Tokenizer.load(settings.model), config)
        loop = EngineLoop(engine)
        loop.start()
        return ServedEngine(loop, engine.validate)
