"""Raw values of one request to token ids and a checked request.

Knows the field table and the tokenizer; knows nothing of the engine or of Triton's interface.
"""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.serving.fields import (
    BY_NAME,
    ELASTIC_QUALITY,
    MAX_STOP_WORD_CHARACTERS,
    MAX_STOP_WORDS,
    QUALITY_THRESHOLDS,
)
from blockdiff.serving.json_text import refuse
from blockdiff.serving.messages import parse_messages, parse_tools
from blockdiff.serving.settings import Settings
from blockdiff.serving.spec import RequestSpec, TextContext
from blockdiff.serving.tool_choice import ToolChoice, choose_tools
from blockdiff.serving.values import merge_values
from blockdiff.text import Tokenizer, find_tool_form, offered_types


class Preprocessor:
    """Builds token ids and a RequestSpec from raw values. Holds no state between requests."""

    def __init__(self, tokenizer: Tokenizer, settings: Settings, max_context: int | None) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._max_context = max_context
        found = find_tool_form(settings.model, tokenizer, settings.tool_form)
        self._tool_form = found.form
        self._limits = {"max_tokens": float(settings.max_output_tokens)}

    def build(
        self, tensors: Mapping[str, NDArray[Any]], parameters: Mapping[str, Any]
    ) -> tuple[list[int], RequestSpec]:
        """Raises RequestError with one clear line for anything that cannot be honoured."""
        self._limit_bytes(tensors)
        given = merge_values(tensors, parameters, self._limits)
        is_chat = _is_chat(given)
        stop_words = _stop_words(given.get("stop_words", []))
        choice = choose_tools(given, parse_tools(given.get("tools", "")))
        if choice.is_required:
            raise UnsupportedError("tool_choice: required calls are not supported; give auto")
        text = given.get("text_input", "")
        ids = self._encode_chat(given, choice) if is_chat else self._encode_text(text)
        max_tokens = self._max_tokens(given.get("max_tokens"), len(ids))
        min_tokens = given.get("min_tokens", 0)
        if min_tokens > max_tokens:
            raise refuse("min_tokens", min_tokens, f"0 to max_tokens ({max_tokens})")
        is_echo = not given.get("exclude_input_in_output", True)
        context = TextContext(
            stop_words=stop_words,
            min_tokens=min_tokens,
            is_chat=is_chat,
            think=self._tokenizer.think_state(ids).value if is_chat else "unknown",
            tool_form=self._tool_form.name if choice.tools else None,
            tools=offered_types(choice.tools),
            echo=text if is_echo else "",
            return_log_probs=given.get("return_log_probs", False),
            return_num_input_tokens=given.get("return_num_input_tokens", True),
            return_num_output_tokens=given.get("return_num_output_tokens", True),
        )
        return ids, _spec(given, max_tokens, context)

    def _limit_bytes(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        limit = self._settings.max_prompt_bytes
        for name, array in tensors.items():
            if array.dtype.hasobject:
                size = sum(len(item) for item in array.reshape(-1).tolist())
                if size > limit:
                    raise RequestError(f"{name}: got {size} bytes, allowed up to {limit} bytes")

    def _encode_text(self, text: str) -> list[int]:
        is_control = self._settings.text_input_special_tokens == "control"
        self._tokenizer.require_room("text_input", text, self._max_context)
        ids = self._tokenizer.encode(text, allow_special=is_control)
        if not ids:
            raise RequestError("text_input: got an empty prompt, allowed at least one token")
        return self._limited("text_input", ids)

    def _encode_chat(self, given: Mapping[str, Any], choice: ToolChoice) -> list[int]:
        messages = parse_messages(given["messages"])
        ids = self._tokenizer.apply_chat_template(
            messages, choice.tools, given.get("enable_thinking"), self._max_context
        )
        return self._limited("messages", ids)

    def _limited(self, name: str, ids: list[int]) -> list[int]:
        if self._max_context is not None and len(ids) >= self._max_context:
            raise RequestError(
                f"{name}: got {len(ids)} tokens, allowed 1 to {self._max_context - 1} "
                f"(the context is {self._max_context} tokens, prompt and answer together)"
            )
        return ids

    def _max_tokens(self, given: int | None, prompt_length: int) -> int:
        most = self._settings.max_output_tokens
        if self._max_context is not None:
            most = min(most, self._max_context - prompt_length)
        if given is None:
            return min(self._settings.default_max_tokens, most)
        if given > most:
            raise RequestError(
                f"max_tokens: got {given}, allowed 1 to {most} after a prompt of "
                f"{prompt_length} tokens"
            )
        return given


def _is_chat(given: Mapping[str, Any]) -> bool:
    text, messages = given.get("text_input"), given.get("messages")
    if text and messages:
        raise RequestError("messages: got both text_input and messages, allowed one of them")
    if messages:
        if not given.get("exclude_input_in_output", True):
            raise refuse("exclude_input_in_output", False, "true with messages")
        return True
    if text is None:
        name = "messages" if messages is not None else "text_input"
        raise RequestError(f"{name}: got nothing, allowed one of text_input and messages")
    if given.get("tools", "").strip():
        raise RequestError("tools: got tools with text_input, allowed only with messages")
    if given.get("tool_choice", "none").strip() not in ("", "none"):
        raise refuse("tool_choice", given["tool_choice"], "none with text_input")
    if given.get("enable_thinking") is not None:
        raise refuse("enable_thinking", given["enable_thinking"], "nothing with text_input")
    return False


def _stop_words(given: list[str]) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word for word in given if word))
    if len(words) > MAX_STOP_WORDS:
        raise refuse("stop_words", f"{len(words)} strings", f"up to {MAX_STOP_WORDS} strings")
    for word in words:
        if len(word) > MAX_STOP_WORD_CHARACTERS:
            raise refuse("stop_words", word, f"up to {MAX_STOP_WORD_CHARACTERS} characters each")
    return words


def _spec(given: Mapping[str, Any], max_tokens: int, context: TextContext) -> RequestSpec:
    threshold = given.get("threshold")
    if "quality" in given:
        for other in ("threshold", "denoise_steps"):
            if other in given:
                raise refuse("quality", given["quality"], f"nothing together with {other}")
        threshold = QUALITY_THRESHOLDS[given["quality"]]
    temperature = given.get("temperature", BY_NAME["temperature"].default)
    # greedy answers do not depend on it, but some models draw their canvases at any temperature
    seed = given.get("seed")
    if seed is None:
        seed = secrets.randbits(63)
    return RequestSpec(
        max_tokens=max_tokens,
        stream=given.get("stream", False),
        ignore_eos=given.get("ignore_eos", False),
        temperature=temperature,
        top_k=given.get("top_k", 0),
        top_p=given.get("top_p", 1.0),
        seed=seed,
        algorithm=given.get("algorithm"),
        block_length=given.get("block_length"),
        denoise_steps=given.get("denoise_steps"),
        threshold=threshold,
        is_elastic=given.get("quality") == ELASTIC_QUALITY,
        received_at=time.monotonic(),
        text=context,
    )
