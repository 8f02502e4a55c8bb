"""The ``preprocessing`` model: public inputs to token ids and a validated request.

Knows Triton's Python interface; knows nothing of the engine.
"""

import json
from typing import Any

import numpy as np

from blockdiff.serving.checks import check_preprocessing
from blockdiff.serving.errors import triton_error, unary_key
from blockdiff.serving.fields import CANONICAL
from blockdiff.serving.model import ServedModel
from blockdiff.serving.preprocessor import Preprocessor
from blockdiff.serving.settings import Settings, context_limit
from blockdiff.serving.tensors import input_arrays, text_tensor
from blockdiff.text import Tokenizer

INPUT_NAMES = tuple(CANONICAL)


class PreprocessingModel(ServedModel):
    """Triton's side of the model: tensors in, tensors or one error out."""

    where = "preprocessing"

    def start(self, model_config: dict[str, Any], settings: Settings) -> None:
        check_preprocessing(model_config, self.config_file)
        tokenizer = Tokenizer.load(settings.model)
        self._preprocessor = Preprocessor(tokenizer, settings, context_limit(settings))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        pb_utils = self.pb_utils
        try:
            tensors = input_arrays(pb_utils, request, INPUT_NAMES)
            parameters = json.loads(request.parameters() or "{}")
            ids, spec = self._preprocessor.build(tensors, parameters)
        except Exception as error:
            return pb_utils.InferenceResponse(
                error=triton_error(pb_utils, error, self.where, bool(unary_key(request)))
            )
        return pb_utils.InferenceResponse(
            output_tensors=[
                pb_utils.Tensor("input_ids", np.array([ids], dtype=np.int32)),
                text_tensor(pb_utils, "request_spec", spec.model_dump_json()),
            ]
        )
