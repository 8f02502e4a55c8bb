"""Loaded by Triton's Python backend; the logic is in blockdiff.serving.preprocessing."""

import triton_python_backend_utils as pb_utils

from blockdiff.serving.preprocessing import PreprocessingModel


class TritonPythonModel(PreprocessingModel):
    pb_utils = pb_utils
