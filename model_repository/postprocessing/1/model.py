"""Loaded by Triton's Python backend; the logic is in blockdiff.serving.postprocessing."""

import triton_python_backend_utils as pb_utils

from blockdiff.serving.postprocessing import PostprocessingModel


class TritonPythonModel(PostprocessingModel):
    pb_utils = pb_utils
