"""Turns options into a ModelInferRequest and a ModelInferResponse into a BlockEvent.

Knows the tensor names and types of the serving contract. Knows nothing of channels, time or
retries, and checks only that a value fits its tensor: what a value may be is the server's say.
"""

from __future__ import annotations

import difflib
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tritonclient.grpc import service_pb2

from .canvas import Canvas, CanvasPlace
from .errors import InvalidArgument, ServerError
from .types import BlockEvent, Messages, Options, ToolCall, TopToken

INPUT_TYPES: dict[str, str] = {
    "text_input": "BYTES",
    "messages": "BYTES",
    "tools": "BYTES",
    "tool_choice": "BYTES",
    "max_tokens": "INT32",
    "min_tokens": "INT32",
    "stream": "BOOL",
    "temperature": "FP32",
    "top_k": "INT32",
    "top_p": "FP32",
    "seed": "UINT64",
    "min_p": "FP32",
    "repetition_penalty": "FP32",
    "presence_penalty": "FP32",
    "frequency_penalty": "FP32",
    "logit_bias": "BYTES",
    "stop_ramp": "BYTES",
    "think_end_ramp": "BYTES",
    "stop_words": "BYTES",
    "stop_token_ids": "INT32",
    "include_stop_str_in_output": "BOOL",
    "bad_words": "BYTES",
    "ignore_eos": "BOOL",
    "exclude_input_in_output": "BOOL",
    "return_log_probs": "BOOL",
    "stream_denoise": "BOOL",
    "pinned": "BYTES",
    "suffix": "BYTES",
    "gap": "INT32",
    "running_priority": "INT32",
    "top_logprobs": "INT32",
    "return_step_map": "BOOL",
    "return_num_input_tokens": "BOOL",
    "return_num_output_tokens": "BOOL",
    "enable_thinking": "BOOL",
    "thinking_budget": "INT32",
    "block_length": "INT32",
    "denoise_steps": "INT32",
    "threshold": "FP32",
    "editing_threshold": "FP32",
    "algorithm": "BYTES",
    "quality": "BYTES",
    "sampling_parameters": "BYTES",
    "guided_decoding_guide_type": "BYTES",
    "guided_decoding_guide": "BYTES",
}

_JSON_FIELDS = (
    *("messages", "tools", "tool_choice", "sampling_parameters"),
    *("logit_bias", "stop_ramp", "think_end_ramp", "pinned"),
)
_OPTIONS = frozenset(Options.__annotations__)
_LIST_FIELDS = ("stop_words", "stop_token_ids", "bad_words")
_INTEGER_RANGES = {"INT32": (-(2**31), 2**31 - 1), "UINT64": (0, 2**64 - 1)}
_FORMATS = {"INT32": "<i", "UINT64": "<Q", "FP32": "<f", "BOOL": "<?"}
_READ_FORMATS = _FORMATS | {"INT64": "<q", "UINT32": "<I", "FP64": "<d", "UINT8": "<B"}


def input_values(
    prompt: str | None, messages: str | Messages | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Values by tensor name, None left out; exactly one of ``prompt`` and ``messages`` is given."""
    if (prompt is None) == (messages is None):
        raise InvalidArgument("give exactly one of prompt and messages")
    values: dict[str, Any] = {"text_input": prompt, "messages": messages}
    for name, value in options.items():
        if name not in _OPTIONS:
            close = difflib.get_close_matches(name, _OPTIONS, 1)
            hint = f", did you mean {close[0]}?" if close else ""
            raise InvalidArgument(f"{name}: no such option{hint}")
        values[name] = value
    values.update(stream=True, return_num_input_tokens=True, return_num_output_tokens=True)
    return {name: value for name, value in values.items() if value is not None}


def build_request(
    model: str,
    request_id: str,
    values: Mapping[str, Any],
    *,
    priority: int | None = None,
) -> Any:
    """A ModelInferRequest for ``values`` (tensor name to Python value); tensors are [1, n]."""
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for name, value in values.items():
        items = _as_items(name, value)
        tensor = request.inputs.add()
        tensor.name, tensor.datatype = name, INPUT_TYPES[name]
        tensor.shape.extend([1, len(items)])
        request.raw_input_contents.append(b"".join(_encode(name, item) for item in items))
    # Without it a final flag that comes without data is never sent to the client.
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    if priority is not None:
        if isinstance(priority, bool) or not 0 <= priority <= 2**32 - 1:
            raise InvalidArgument(f"priority: {priority!r} is not allowed (0 or more)")
        request.parameters["priority"].uint64_param = priority
    return request


def _as_items(name: str, value: Any) -> Sequence[Any]:
    if name in _LIST_FIELDS:
        items = [value] if isinstance(value, str | int) else list(value)
        return items
    if name in _JSON_FIELDS and not isinstance(value, str):
        try:
            return [json.dumps(value, ensure_ascii=False, allow_nan=False)]
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"{name}: cannot be written as JSON ({error})") from None
    return [value]


def _encode(name: str, value: Any) -> bytes:
    datatype = INPUT_TYPES[name]
    if datatype == "BYTES":
        return _encode_text(name, value)
    if datatype == "BOOL":
        if not isinstance(value, bool):
            raise InvalidArgument(f"{name}: {value!r} is not true or false")
    elif datatype == "FP32":
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidArgument(f"{name}: {value!r} is not a number")
    else:
        low, high = _INTEGER_RANGES[datatype]
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise InvalidArgument(f"{name}: {value!r} is not an integer from {low} to {high}")
    try:
        return struct.pack(_FORMATS[datatype], value)
    except OverflowError:
        raise InvalidArgument(f"{name}: {value!r} is too large") from None


def _encode_text(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name}: {value!r} is not a string")
    try:
        data = value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name}: contains a lone surrogate, not valid UTF-8") from None
    return struct.pack("<I", len(data)) + data


def decode_outputs(response: Any) -> dict[str, list[Any]]:
    """Output tensors of a ModelInferResponse as flat lists by name (BYTES as str)."""
    outputs: dict[str, list[Any]] = {}
    for tensor, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if tensor.datatype == "BYTES":
            outputs[tensor.name] = _decode_texts(raw)
        elif tensor.datatype in _READ_FORMATS:
            step = struct.iter_unpack(_READ_FORMATS[tensor.datatype], raw)
            outputs[tensor.name] = [value for (value,) in step]
    return outputs


def _decode_texts(raw: bytes) -> list[str]:
    texts, at = [], 0
    while at + 4 <= len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        texts.append(raw[at + 4 : at + 4 + size].decode("utf-8", errors="replace"))
        at += 4 + size
    return texts


def is_final_response(response: Any) -> bool:
    """True when Triton says that nothing follows, with or without data in this response."""
    return "triton_final_response" in response.parameters and bool(
        response.parameters["triton_final_response"].bool_param
    )


def decode_block(outputs: Mapping[str, list[Any]], elapsed: float) -> BlockEvent:
    """BlockEvent from decoded outputs; a tensor the server left out counts as empty."""

    def first(name: str, default: Any) -> Any:
        values = outputs.get(name)
        return values[0] if values else default

    is_final = bool(first("is_final", False))
    # float32 on the wire
    threshold = round(float(first("threshold_used", -1.0)), 6)
    return BlockEvent(
        text=first("text_output", ""),
        reasoning=first("reasoning_output", ""),
        tool_calls=parse_tool_calls(first("tool_calls", "")),
        has_malformed_tool_call=bool(first("has_malformed_tool_call", False)),
        block_index=int(first("block_index", 0)),
        denoise_steps=int(first("denoise_steps_used", 0)),
        threshold=threshold if threshold >= 0 else None,
        num_input_tokens=int(first("num_input_tokens", 0)),
        num_output_tokens=int(first("num_output_tokens", 0)),
        num_reasoning_tokens=int(first("num_reasoning_tokens", 0)),
        is_final=is_final,
        finish_reason=first("finish_reason", "") or None,
        stop_reason=first("stop_reason", "") or None,
        log_probs=tuple(outputs.get("output_log_probs", ())),
        canvas=parse_canvas(first("canvas", "")),
        elapsed=elapsed,
        top_log_probs=parse_top_log_probs(first("top_log_probs", "")),
        step_map=tuple(outputs.get("step_map", ())),
    )


def parse_canvas(text: str) -> Canvas | None:
    """The canvas of a response; None where it has none."""
    if not text:
        return None
    try:
        given = json.loads(text)
        places = tuple(CanvasPlace(**place) for place in given.pop("tokens"))
        return Canvas(**given, places=places)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ServerError(f"canvas: the server sent {text[:200]!r}, not a canvas") from None


def parse_top_log_probs(text: str) -> tuple[tuple[TopToken, ...], ...]:
    """Most probable tokens per token from JSON; empty text: nobody asked."""
    try:
        lists = json.loads(text) if text else []
        return tuple(tuple(TopToken(**token) for token in top) for top in lists)
    except (ValueError, TypeError):
        raise ServerError(f"top_log_probs: the server sent {text[:200]!r}") from None


def parse_tool_calls(text: str) -> tuple[ToolCall, ...]:
    """Tool calls from JSON: plain ``{"name", "arguments"}`` or OpenAI's ``{"function": {...}}``."""
    if not text.strip():
        return ()
    try:
        parsed = json.loads(text)
        items = parsed if isinstance(parsed, list) else [parsed]
        return tuple(_tool_call(item) for item in items)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ServerError(f"tool_calls: the server sent {text[:200]!r}, not tool calls") from None


def _tool_call(item: Mapping[str, Any]) -> ToolCall:
    body = item.get("function", item)
    arguments = body.get("arguments", {})
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(name=str(body["name"]), arguments=arguments, id=str(item.get("id") or ""))
