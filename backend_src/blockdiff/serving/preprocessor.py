"""Raw values of one request to token ids and a checked request.

Knows the field table and the tokenizer; knows nothing of the engine or of Triton's interface.
"""

import secrets
import time
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from blockdiff.core import Ramp
from blockdiff.errors import RequestError
from blockdiff.infill import Infill
from blockdiff.serving.fields import (
    BY_NAME,
    ELASTIC_QUALITY,
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORDS,
    QUALITY_THRESHOLDS,
)
from blockdiff.serving.guide_fields import Limits, check_limits, read_guide
from blockdiff.serving.infill_fields import read_infill
from blockdiff.serving.json_text import refuse
from blockdiff.serving.messages import parse_messages, parse_tools
from blockdiff.serving.model_facts import FactsReader, facts_file
from blockdiff.serving.rules import check_rules
from blockdiff.serving.sampling_fields import read_biases, read_ramps
from blockdiff.serving.settings import Settings
from blockdiff.serving.spec import RequestSpec, TextContext
from blockdiff.serving.text_fields import read_stop_words, read_thinking, read_words
from blockdiff.serving.tool_choice import ToolChoice, choose_tools, required_calls
from blockdiff.serving.values import merge_values
from blockdiff.text import FORMS, ThinkState, Tokenizer, offered_types


class Preprocessor:
    """Builds token ids and a RequestSpec from raw values. Holds no state between requests."""

    def __init__(self, tokenizer: Tokenizer, settings: Settings, max_context: int | None) -> None:
        self._tokenizer = tokenizer
        self._settings = settings
        self._max_context = max_context
        self._facts = FactsReader(facts_file(settings.relay_socket))
        wanted = settings.tool_form
        self._tool_form = tokenizer.tool_form.form if wanted is None else FORMS[wanted]
        self._limits = {"max_tokens": float(settings.max_output_tokens)}

    def build(
        self, tensors: Mapping[str, NDArray[Any]], parameters: Mapping[str, Any]
    ) -> tuple[list[int], RequestSpec]:
        """Raises RequestError with one clear line for anything that cannot be honoured."""
        self._limit_bytes(tensors)
        given = merge_values(tensors, parameters, self._limits)
        check_rules(given)
        is_chat = bool(given.get("messages"))
        stop_words = read_stop_words(given.get("stop_words", []), self._settings)
        choice = choose_tools(given, parse_tools(given.get("tools", "")))
        text = given.get("text_input", "")
        ids = self._encode_chat(given, choice) if is_chat else self._encode_text(text)
        infill = read_infill(given, self._tokenizer.encode)
        max_tokens = self._max_tokens(given.get("max_tokens", infill.max_tokens), len(ids))
        min_tokens = given.get("min_tokens", infill.min_tokens or 0)
        if min_tokens > max_tokens:
            raise refuse("min_tokens", min_tokens, f"0 to max_tokens ({max_tokens})")
        given = {**given, "max_tokens": max_tokens, "min_tokens": min_tokens}
        context = self._context(given, ids, choice, stop_words)
        think = ThinkState(context.think)
        guide = required_calls(choice, self._tool_form.name, self._tokenizer, think)
        bad_words = given.get("bad_words", [])
        limits = Limits(
            guide or read_guide(given, think),
            read_words("bad_words", bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS),
            read_thinking(given, think, self._tokenizer) if is_chat else None,
        )
        check_limits(limits)
        spec = _spec(given, infill, context, limits, self._ramps(given, context))
        facts = self._facts.read()
        if facts is not None:
            facts.check(spec.engine_request(0, tuple(ids), None))
        return ids, spec

    def _context(
        self,
        given: Mapping[str, Any],
        ids: list[int],
        choice: ToolChoice,
        stop_words: tuple[str, ...],
    ) -> TextContext:
        is_chat = bool(given.get("messages"))
        is_echo = not given.get("exclude_input_in_output", True)
        return TextContext(
            stop_words=stop_words,
            stop_token_ids=tuple(dict.fromkeys(given.get("stop_token_ids", ()))),
            includes_stop=given.get("include_stop_str_in_output", False),
            min_tokens=given["min_tokens"],
            is_chat=is_chat,
            think=self._tokenizer.think_state(ids).value if is_chat else "unknown",
            tool_form=self._tool_form.name if choice.tools else None,
            tools=offered_types(choice.tools),
            echo=given["text_input"] if is_echo else "",
            return_log_probs=given.get("return_log_probs", False),
            top_logprobs=given.get("top_logprobs", 0),
            return_step_map=given.get("return_step_map", False),
            return_num_input_tokens=given.get("return_num_input_tokens", True),
            return_num_output_tokens=given.get("return_num_output_tokens", True),
        )

    def _ramps(self, given: Mapping[str, Any], context: TextContext) -> tuple[Ramp, ...]:
        own = self._settings
        # a raw prompt says nothing of thinking
        think_end = own.think_end_ramp if context.is_chat else ""
        defaults = {"stop_ramp": own.stop_ramp, "think_end_ramp": think_end}
        is_thinking = context.think != ThinkState.CLOSED.value
        return read_ramps(given, defaults, self._tokenizer.special.think_end, is_thinking)

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


def _spec(
    given: Mapping[str, Any],
    infill: Infill,
    context: TextContext,
    limits: Limits,
    ramps: tuple[Ramp, ...],
) -> RequestSpec:
    threshold = given.get("threshold")
    if "quality" in given:
        threshold = QUALITY_THRESHOLDS[given["quality"]]
    temperature = given.get("temperature", BY_NAME["temperature"].default)
    # greedy answers do not depend on it, but some models draw their canvases at any temperature
    seed = given.get("seed")
    if seed is None:
        seed = secrets.randbits(63)
    return RequestSpec(
        max_tokens=given["max_tokens"],
        stream=given.get("stream", False),
        stream_denoise=given.get("stream_denoise", False),
        pinned=infill.pinned,
        priority=given.get("running_priority", 0),
        guide=limits.guide,
        thinking=limits.thinking,
        bad_words=limits.bad_words,
        ignore_eos=given.get("ignore_eos", False),
        temperature=temperature,
        top_k=given.get("top_k", 0),
        top_p=given.get("top_p", 1.0),
        seed=seed,
        min_p=given.get("min_p", 0.0),
        repetition_penalty=given.get("repetition_penalty", 1.0),
        presence_penalty=given.get("presence_penalty", 0.0),
        frequency_penalty=given.get("frequency_penalty", 0.0),
        logit_bias=read_biases(given.get("logit_bias", "")),
        ramps=ramps,
        algorithm=given.get("algorithm"),
        block_length=given.get("block_length"),
        denoise_steps=given.get("denoise_steps"),
        threshold=threshold,
        is_elastic=given.get("quality") == ELASTIC_QUALITY,
        received_at=time.monotonic(),
        text=context,
    )
