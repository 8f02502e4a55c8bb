"""The ``unary`` model: the ensemble behind one request and one response.

For plain ``/infer`` and gRPC calls, which Triton refuses for decoupled models. Tells the engine
when the caller has given up. Knows nothing of tokens.
"""

import json
import uuid
from typing import Any

import numpy as np

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
from blockdiff.serving.tensors import scalar_tensor
from blockdiff.serving.worker import Worker

POLL_SECONDS = 0.1


class CancelWatch(Worker):
    """While open, looks whether the caller gave up and tells the engine until it listens."""

    def __init__(self, request: Any, relay: CancelRelay, key: str) -> None:
        super().__init__("blockdiff-watch")
        self._request = request
        self._relay = relay
        self._key = key
        self.is_cancelled = False

    def __enter__(self) -> "CancelWatch":
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def run(self) -> None:
        while not self._is_closing.wait(POLL_SECONDS):
            self.is_cancelled = self.is_cancelled or bool(self._request.is_cancelled())
            if self.is_cancelled:
                # Again and again: the request may still be on its way to the engine.
                self._relay.cancel_key(self._key)


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
            answer = self._ask(request)
            wanted = set(request.requested_output_names())
            tensors = [t for t in answer.output_tensors() if t.name() in wanted]
            return pb_utils.InferenceResponse(output_tensors=tensors)
        except _EnsembleError as error:
            return pb_utils.InferenceResponse(error=untagged_error(pb_utils, str(error)))
        except Exception as error:
            return pb_utils.InferenceResponse(error=triton_error(pb_utils, error, self.where))

    def _ask(self, request: Any) -> Any:
        """The only response of the ensemble that is not empty."""
        key = uuid.uuid4().hex
        answer = None
        with CancelWatch(request, self._relay, key) as watch:
            for response in self._inner_request(request, key).exec(decoupled=True):
                if response.has_error():
                    raise _EnsembleError(response.error().message())
                answer = response if response.output_tensors() else answer
        if watch.is_cancelled:
            raise RequestCancelledError("the request was cancelled")
        if answer is None:
            raise _EnsembleError("the ensemble sent no response")
        return answer

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
        # One response: an error behind earlier responses never arrives here (Triton 24.10).
        inputs.append(scalar_tensor(pb_utils, "stream", False, np.bool_))
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
