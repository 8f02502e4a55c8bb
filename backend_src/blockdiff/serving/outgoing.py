"""Responses of one request on their way to Triton: when to send, what is in them.

Owns the request's response sender. Used by one thread only. Knows nothing of engines and queues.
"""

import json
from dataclasses import replace
from typing import Any

import numpy as np

from blockdiff.core import BlockResult
from blockdiff.errors import CapacityError
from blockdiff.serving.canvas import to_wire
from blockdiff.serving.errors import RETRY_HINT, triton_error
from blockdiff.serving.spec import RequestSpec
from blockdiff.serving.tensors import list_tensor, scalar_tensor, text_tensor

WHERE = "block_diffusion"
# A caller who reads slowly leaves responses in the server: past so many characters of canvases a
# request has them with its finished blocks only.
MAX_CANVAS_CHARACTERS = 16 << 20
NO_THRESHOLD = -1.0


class OutgoingStream:
    """Sends each block, or all blocks as one; the last response carries the final flag.

    After the final response the sender is dropped: asking it anything then crashes the server.
    """

    def __init__(
        self, pb_utils: Any, uid: int, sender: Any, spec: RequestSpec, is_tagged: bool = False
    ) -> None:
        self._pb_utils = pb_utils
        self._sender = sender
        self._spec = spec
        self._is_tagged = is_tagged
        self._collected: list[BlockResult] = []
        self._canvas_characters = 0
        self._is_first = True
        self._next_index = 0
        self._num_input_tokens = 0
        self.uid = uid

    @property
    def is_open(self) -> bool:
        return self._sender is not None

    def is_cancelled(self) -> bool:
        """Whether the caller gave up; False once the final response is out."""
        return self._sender is not None and bool(self._sender.is_cancelled())

    def send(self, result: BlockResult) -> None:
        """Sends a block, or keeps it until the last one when the caller wants one response."""
        if self._sender is None:
            return
        if result.error is not None:
            self.fail(CapacityError(f"{result.error}; {RETRY_HINT}"))
            return
        if result.is_partial:
            self._send_canvas(result)
            return
        if not self._spec.stream:
            self._collected.append(result)
            if not result.is_final:
                return
            result = joined(self._collected)
        response = self._pb_utils.InferenceResponse(output_tensors=self._tensors(result))
        self._is_first = False
        self._next_index = result.block_index + 1
        self._num_input_tokens = result.num_input_tokens
        self._send(response, result.is_final)

    def _send_canvas(self, result: BlockResult) -> None:
        if not self._spec.stream or self._canvas_characters > MAX_CANVAS_CHARACTERS:
            return
        self._canvas_characters += len(to_wire(result))
        response = self._pb_utils.InferenceResponse(output_tensors=self._tensors(result))
        self._is_first = False
        self._next_index = result.block_index
        self._num_input_tokens = result.num_input_tokens
        self._send(response, False)

    def fail(self, error: Exception) -> None:
        """Ends the request with an error.

        After a first response it travels as a tensor that postprocessing turns into the error: an
        error of this step would overtake the blocks that are still on their way through the
        ensemble, and releases before 26.02 then lose count of them.
        """
        if self._sender is None:
            return
        if self._is_first:
            described = triton_error(self._pb_utils, error, WHERE, self._is_tagged)
            self._send(self._pb_utils.InferenceResponse(error=described), True)
            return
        text = triton_error(self._pb_utils, error, WHERE, is_tagged=True).message()
        ending = BlockResult(self.uid, self._next_index, (), (), 0, self._num_input_tokens, True)
        response = self._pb_utils.InferenceResponse(output_tensors=self._tensors(ending, text))
        self._send(response, True)

    def _send(self, response: Any, is_final: bool) -> None:
        sender = self._sender
        if is_final:
            self._sender = None
            sender.send(response, flags=self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        else:
            sender.send(response)

    def _tensors(self, result: BlockResult, error: str = "") -> list[Any]:
        pb_utils = self._pb_utils
        context = self._spec.text.model_dump_json() if self._is_first else ""
        reason = result.finish_reason.value if result.finish_reason is not None else ""
        threshold = NO_THRESHOLD if result.threshold is None else result.threshold
        return [
            list_tensor(pb_utils, "output_ids", result.token_ids, np.int32),
            list_tensor(pb_utils, "block_log_probs", result.log_probs, np.float32),
            text_tensor(pb_utils, "block_top_log_probs", _top_text(result)),
            list_tensor(pb_utils, "block_steps", result.settled_steps, np.int32),
            scalar_tensor(pb_utils, "block_index", result.block_index, np.int32),
            scalar_tensor(pb_utils, "denoise_steps_used", result.denoise_steps, np.int32),
            scalar_tensor(pb_utils, "threshold_used", threshold, np.float32),
            scalar_tensor(pb_utils, "is_final", result.is_final, np.bool_),
            text_tensor(pb_utils, "finish_reason", reason),
            text_tensor(pb_utils, "stop_reason", result.stop_reason),
            scalar_tensor(pb_utils, "num_input_tokens", result.num_input_tokens, np.int32),
            scalar_tensor(pb_utils, "request_uid", result.request_uid, np.uint64),
            text_tensor(pb_utils, "request_context", context),
            text_tensor(pb_utils, "canvas_ids", to_wire(result)),
            text_tensor(pb_utils, "error", error),
        ]


def _top_text(result: BlockResult) -> str:
    """JSON, per token a list of [id, log prob]; empty where nobody asked."""
    return json.dumps(result.top_log_probs) if result.top_log_probs else ""


def joined(results: list[BlockResult]) -> BlockResult:
    """All blocks of a request as one result that ends as the last of them does."""
    return replace(
        results[-1],
        token_ids=tuple(token for result in results for token in result.token_ids),
        log_probs=tuple(value for result in results for value in result.log_probs),
        settled_steps=tuple(step for result in results for step in result.settled_steps),
        top_log_probs=tuple(top for result in results for top in result.top_log_probs),
        denoise_steps=sum(result.denoise_steps for result in results),
        threshold=min(
            (result.threshold for result in results if result.threshold is not None), default=None
        ),
    )
