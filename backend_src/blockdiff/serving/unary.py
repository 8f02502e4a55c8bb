"""The ``unary`` model: the ensemble behind one request and one response.

For plain ``/infer`` and gRPC calls, which Triton refuses for decoupled models. Asks the ensemble
for blocks, so that a caller who gave up is noticed between them. Knows nothing of tokens.
"""

import json
import uuid
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdiff.errors import RequestError
from blockdiff.serving.checks import check_unary
from blockdiff.serving.errors import (
    UNARY_KEY,
    RequestCancelledError,
    triton_error,
    untagged_error,
)
from blockdiff.serving.fields import CANONICAL, OUTPUTS
from blockdiff.serving.model import ServedModel
from blockdiff.serving.relay import CancelRelay
from blockdiff.serving.settings import Settings
from blockdiff.serving.tensors import scalar_tensor, text_of, text_tensor

_JOINED_TEXT = ("text_output", "reasoning_output")
_SUMMED = ("num_output_tokens", "denoise_steps_used")


class JoinedAnswer:
    """Adds up the deltas of a stream; what is no delta keeps its last value."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {name: [] for name in _JOINED_TEXT}
        self._sums: dict[str, int] = {}
        self._calls: list[Any] = []
        self._log_probs: list[NDArray[Any]] = []
        self._last: dict[str, NDArray[Any]] = {}

    def add(self, arrays: dict[str, NDArray[Any]]) -> None:
        for name, array in arrays.items():
            if name in self._texts:
                self._texts[name].append(text_of(array))
            elif name in _SUMMED:
                self._sums[name] = self._sums.get(name, 0) + int(array.reshape(-1)[0])
            elif name == "tool_calls":
                self._calls += json.loads(text_of(array) or "[]")
            elif name == "output_log_probs":
                self._log_probs.append(array.reshape(1, -1))
            else:
                self._last[name] = array

    def tensors(self, pb_utils: Any) -> list[Any]:
        calls = json.dumps(self._calls, ensure_ascii=False) if self._calls else ""
        made = [text_tensor(pb_utils, name, "".join(t)) for name, t in self._texts.items()]
        made.append(text_tensor(pb_utils, "tool_calls", calls))
        made += [
            scalar_tensor(pb_utils, name, total, np.int32) for name, total in self._sums.items()
        ]
        made += [pb_utils.Tensor(name, array) for name, array in self._last.items()]
        if self._log_probs:
            values = np.concatenate(self._log_probs, axis=1)
            made.append(pb_utils.Tensor("output_log_probs", values))
        return made


class UnaryModel(ServedModel):
    """Triton's side of the model."""

    where = "unary"

    def start(self, model_config: dict[str, Any], settings: Settings) -> None:
        check_unary(model_config, self.config_file)
        self._ensemble = settings.ensemble
        self._relay = CancelRelay(settings.relay_socket)

    def finalize(self) -> None:
        self._relay.close()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        pb_utils = self.pb_utils
        try:
            joined = self._collect(request)
            wanted = set(request.requested_output_names())
            tensors = [t for t in joined.tensors(pb_utils) if t.name() in wanted]
            return pb_utils.InferenceResponse(output_tensors=tensors)
        except _EnsembleError as error:
            return pb_utils.InferenceResponse(error=untagged_error(pb_utils, str(error)))
        except Exception as error:
            return pb_utils.InferenceResponse(error=triton_error(pb_utils, error, self.where))

    def _collect(self, request: Any) -> JoinedAnswer:
        key = uuid.uuid4().hex
        joined = JoinedAnswer()
        is_cancelled = False
        for response in self._inner_request(request, key).exec(decoupled=True):
            if response.has_error():
                raise _EnsembleError(response.error().message())
            tensors = response.output_tensors()
            if tensors and not is_cancelled:
                joined.add({tensor.name(): np.array(tensor.as_numpy()) for tensor in tensors})
            if not is_cancelled and request.is_cancelled():
                self._relay.cancel_key(key)
                is_cancelled = True
        if is_cancelled:
            raise RequestCancelledError("the request was cancelled")
        return joined

    def _inner_request(self, request: Any, key: str) -> Any:
        pb_utils = self.pb_utils
        inputs = []
        for name in CANONICAL:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is None:
                continue
            if name == "stream":
                if bool(tensor.as_numpy().reshape(-1)[0]):
                    raise RequestError("stream: got true, allowed false; call the ensemble")
                continue
            inputs.append(tensor)
        inputs.append(scalar_tensor(pb_utils, "stream", True, np.bool_))
        parameters = json.loads(request.parameters() or "{}")
        return pb_utils.InferenceRequest(
            model_name=self._ensemble,
            request_id=request.request_id(),
            inputs=inputs,
            requested_output_names=[output.name for output in OUTPUTS],
            timeout=request.timeout(),
            parameters={**parameters, UNARY_KEY: key},
        )


class _EnsembleError(Exception):
    """Carries the text of an error of the ensemble on."""
