"""Loaded by Triton's Python backend; the logic is in blockdiff.serving.unary."""

import triton_python_backend_utils as pb_utils

from blockdiff.serving.unary import UnaryModel


class TritonPythonModel(UnaryModel):
    pb_utils = pb_utils
