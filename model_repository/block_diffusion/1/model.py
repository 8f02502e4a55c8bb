"""Loaded by Triton's Python backend; the logic is in blockdiff.serving.block_diffusion."""

import triton_python_backend_utils as pb_utils

from blockdiff.serving.block_diffusion import BlockDiffusionModel


class TritonPythonModel(BlockDiffusionModel):
    pb_utils = pb_utils
