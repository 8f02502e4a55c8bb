"""The ``postprocessing`` model: blocks of token ids to deltas of text, reasoning and tool calls.

Keeps one text state per running request, so it must be a single instance that sees blocks in
order. Notices cancelled callers and tells the engine. Knows nothing of the engine itself.
"""

import json
import time
from collections import OrderedDict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blockdiff.core import FinishReason
from blockdiff.errors import BlockdiffError
from blockdiff.serving.answer import AnswerText, Delta
from blockdiff.serving.canvas import to_public
from blockdiff.serving.checks import check_postprocessing
from blockdiff.serving.errors import (
    RequestCancelledError,
    triton_error,
    unary_key,
    untagged_error,
)
from blockdiff.serving.model import ServedModel
from blockdiff.serving.relay import CancelRelay
from blockdiff.serving.settings import Settings
from blockdiff.serving.spec import TextContext
from blockdiff.serving.tensors import (
    input_arrays,
    list_tensor,
    scalar_tensor,
    text_of,
    text_tensor,
)
from blockdiff.text import Tokenizer
from blockdiff.text.pieces import PieceTexts

INPUT_NAMES = (
    "output_ids",
    "block_log_probs",
    "block_top_log_probs",
    "block_steps",
    "block_index",
    "denoise_steps_used",
    "threshold_used",
    "is_final",
    "finish_reason",
    "stop_reason",
    "num_input_tokens",
    "request_uid",
    "request_context",
    "canvas_ids",
    "error",
)


class StateLostError(BlockdiffError):
    """A block arrived whose request is unknown: it was idle for too long or never began."""


class AnswerTable:
    """Text states of running requests, oldest use first; idle ones are dropped."""

    def __init__(self, tokenizer: Tokenizer, idle_seconds: float) -> None:
        self._tokenizer = tokenizer
        self._idle_seconds = idle_seconds
        self._answers: OrderedDict[int, tuple[float, AnswerText]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, uid: int, context: str) -> AnswerText:
        """The state of ``uid``; a non-empty ``context`` begins a new one."""
        now = time.monotonic()
        self._drop_idle(now)
        if context:
            answer = AnswerText(self._tokenizer, uid, TextContext.model_validate_json(context))
        elif uid in self._answers:
            answer = self._answers[uid][1]
        else:
            raise StateLostError("request_uid: got a block of a request that is not running")
        self._answers[uid] = (now, answer)
        self._answers.move_to_end(uid)
        return answer

    def drop(self, uid: int) -> None:
        self._answers.pop(uid, None)

    def _drop_idle(self, now: float) -> None:
        while self._answers:
            uid, (used_at, _) = next(iter(self._answers.items()))
            if now - used_at <= self._idle_seconds:
                return
            del self._answers[uid]


class PostprocessingModel(ServedModel):
    """Triton's side of the model."""

    where = "postprocessing"

    def start(self, model_config: dict[str, Any], settings: Settings) -> None:
        check_postprocessing(model_config, self.config_file)
        tokenizer = Tokenizer.load(settings.model)
        self._pieces = PieceTexts(tokenizer)
        self._table = AnswerTable(tokenizer, settings.default_timeout_seconds + 60.0)
        self._relay = CancelRelay(settings.relay_socket)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def finalize(self) -> None:
        self._relay.close()

    def _answer(self, request: Any) -> Any:
        uid: int | None = None
        try:
            block = input_arrays(self.pb_utils, request, INPUT_NAMES)
            uid = int(block["request_uid"].reshape(-1)[0])
            is_final = bool(block["is_final"].reshape(-1)[0])
            if request.is_cancelled():
                if not is_final:
                    self._relay.cancel_uid(uid)
                raise RequestCancelledError("the request was cancelled")
            failure = text_of(block["error"])
            if failure:
                self._table.drop(uid)
                error = untagged_error(self.pb_utils, failure)
                return self.pb_utils.InferenceResponse(error=error)
            response = self._respond(request, uid, is_final, block)
            if is_final:
                self._table.drop(uid)
            return response
        except Exception as error:
            if uid is not None:
                self._table.drop(uid)
                if not isinstance(error, RequestCancelledError):
                    # Nobody will read the rest.
                    self._relay.cancel_uid(uid)
            return self.pb_utils.InferenceResponse(
                error=triton_error(self.pb_utils, error, self.where, bool(unary_key(request)))
            )

    def _respond(
        self, request: Any, uid: int, is_final: bool, block: dict[str, NDArray[Any]]
    ) -> Any:
        answer = self._table.find(uid, text_of(block["request_context"]))
        token_ids = block["output_ids"].reshape(-1).tolist()
        stop_reason = text_of(block["stop_reason"])
        finish = text_of(block["finish_reason"])
        delta = answer.push(token_ids, stop_reason, is_final)
        if finish == FinishReason.STOP and answer.has_calls:
            finish = FinishReason.TOOL_CALLS.value
        wanted = set(request.requested_output_names())
        tensors = self._tensors(answer, delta, finish, block)
        return self.pb_utils.InferenceResponse(
            output_tensors=[tensor for tensor in tensors if tensor.name() in wanted]
        )

    def _tensors(
        self, answer: AnswerText, delta: Delta, finish: str, block: dict[str, NDArray[Any]]
    ) -> list[Any]:
        pb_utils, context = self.pb_utils, answer.context
        calls = json.dumps(delta.calls, ensure_ascii=False) if delta.calls else ""
        malformed = delta.has_malformed_call
        tensors = [
            text_tensor(pb_utils, "text_output", delta.text),
            text_tensor(pb_utils, "reasoning_output", delta.reasoning),
            text_tensor(pb_utils, "tool_calls", calls),
            scalar_tensor(pb_utils, "has_malformed_tool_call", malformed, np.bool_),
            text_tensor(pb_utils, "finish_reason", finish),
            pb_utils.Tensor("stop_reason", block["stop_reason"]),
            pb_utils.Tensor("block_index", block["block_index"]),
            pb_utils.Tensor("denoise_steps_used", block["denoise_steps_used"]),
            pb_utils.Tensor("threshold_used", block["threshold_used"]),
            pb_utils.Tensor("is_final", block["is_final"]),
            text_tensor(pb_utils, "canvas", to_public(text_of(block["canvas_ids"]), self._pieces)),
        ]
        if context.return_num_input_tokens:
            tensors.append(pb_utils.Tensor("num_input_tokens", block["num_input_tokens"]))
        if context.return_num_output_tokens:
            count = block["output_ids"].size
            tensors.append(scalar_tensor(pb_utils, "num_output_tokens", count, np.int32))
            thought = delta.num_reasoning_tokens
            tensors.append(scalar_tensor(pb_utils, "num_reasoning_tokens", thought, np.int32))
        if context.return_log_probs:
            values = block["block_log_probs"].reshape(-1).tolist()
            tensors.append(list_tensor(pb_utils, "output_log_probs", values, np.float32))
        if context.top_logprobs:
            top = answer.top_text(text_of(block["block_top_log_probs"]))
            tensors.append(text_tensor(pb_utils, "top_log_probs", top))
        if context.return_step_map:
            steps = block["block_steps"].reshape(-1).tolist()
            tensors.append(list_tensor(pb_utils, "step_map", steps, np.int32))
        return tensors
