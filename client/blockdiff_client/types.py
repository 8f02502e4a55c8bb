"""What a caller gives and gets: options, blocks, generations, health. Data only.

Knows nothing of gRPC, tensors or terminals.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from .canvas import Canvas


@dataclass(frozen=True)
class RetryPolicy:
    """When to try again: ``attempts`` in all, waits grow from ``base`` to ``cap`` seconds.

    Only errors that came before the first block and say "not now" are retried.
    """

    attempts: int = 4
    base: float = 0.1
    cap: float = 2.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.base < 0 or self.cap < self.base:
            raise ValueError("RetryPolicy needs attempts >= 1 and 0 <= base <= cap")


class Options(TypedDict, total=False):
    """Fields of a generation request, named as the server names them; all optional.

    A field left out, or None, is not sent and the server's default rules.
    """

    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    seed: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: str | Mapping[str, float] | None
    stop_ramp: str | Mapping[str, float] | None
    think_end_ramp: str | Mapping[str, float] | None
    stop_words: Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    include_stop_str_in_output: bool | None
    bad_words: Sequence[str] | None
    ignore_eos: bool | None
    exclude_input_in_output: bool | None
    return_log_probs: bool | None
    stream_denoise: bool | None
    pinned: str | Mapping[int, int] | Sequence[Sequence[int]] | None
    suffix: str | None
    gap: int | None
    running_priority: int | None
    top_logprobs: int | None
    return_step_map: bool | None
    enable_thinking: bool | None
    thinking_budget: int | None
    block_length: int | None
    denoise_steps: int | None
    threshold: float | None
    editing_threshold: float | None
    algorithm: str | None
    quality: str | None
    tools: str | Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    sampling_parameters: str | Mapping[str, Any] | None
    guided_decoding_guide_type: str | None
    guided_decoding_guide: str | None


class CallOptions(TypedDict, total=False):
    """How one call is made; what is left out is as the client was built. Times in seconds.

    ``deadline`` bounds the whole call, retries included, here and on the server;
    ``silence_timeout`` bounds each wait for a block. None means no limit.
    """

    model: str
    deadline: float | None
    silence_timeout: float | None
    retry: RetryPolicy
    priority: int | None
    request_id: str | None


class RequestOptions(Options, CallOptions, total=False):
    """Everything ``generate`` and ``stream`` take by keyword besides prompt and messages."""


Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ToolCall:
    """One function call the model asks for. ``arguments`` is JSON text, as the model wrote it."""

    name: str
    arguments: str
    id: str = ""

    def parsed_arguments(self) -> dict[str, Any]:
        value = json.loads(self.arguments or "{}")
        if not isinstance(value, dict):
            raise ValueError(f"arguments of {self.name!r} are not a JSON object")
        return value


@dataclass(frozen=True)
class TopToken:
    """One of the most probable tokens at the step that settled a token."""

    id: int
    token: str
    log_prob: float


@dataclass(frozen=True)
class BlockEvent:
    """One block as it arrived. Texts and token counts are deltas: append and add them up.

    ``elapsed`` is seconds from the call to the arrival of this block. ``finish_reason`` and
    ``stop_reason`` are None until the final block, ``threshold`` where none decided the block.
    ``has_malformed_tool_call``: ``text`` holds what began like a tool call and is none.
    ``canvas`` is set with ``stream_denoise`` only, see ``is_partial``.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    block_index: int = 0
    denoise_steps: int = 0
    num_input_tokens: int = 0
    num_output_tokens: int = 0
    num_reasoning_tokens: int = 0
    is_final: bool = False
    finish_reason: str | None = None
    stop_reason: str | None = None
    log_probs: tuple[float, ...] = ()
    elapsed: float = 0.0
    threshold: float | None = None
    top_log_probs: tuple[tuple[TopToken, ...], ...] = ()
    step_map: tuple[int, ...] = ()
    has_malformed_tool_call: bool = False
    canvas: Canvas | None = None

    @property
    def is_partial(self) -> bool:
        """Whether there is a canvas and nothing else: the block is not finished."""
        return self.canvas is not None and not self.canvas.is_finished


@dataclass(frozen=True)
class Generation:
    """A whole answer: the blocks and their sums."""

    blocks: tuple[BlockEvent, ...]
    request_id: str
    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    stop_reason: str | None
    num_input_tokens: int
    num_output_tokens: int
    denoise_steps: int
    log_probs: tuple[float, ...]
    seconds: float
    seconds_to_first_block: float
    top_log_probs: tuple[tuple[TopToken, ...], ...] = ()
    step_map: tuple[int, ...] = ()
    has_malformed_tool_call: bool = False
    num_reasoning_tokens: int = 0

    @classmethod
    def from_blocks(cls, blocks: Iterable[BlockEvent], request_id: str = "") -> Generation:
        """Join blocks; with no final block among them ``finish_reason`` is None."""
        parts = tuple(block for block in blocks if not block.is_partial)
        last = parts[-1] if parts else BlockEvent()
        return cls(
            blocks=parts,
            request_id=request_id,
            text="".join(part.text for part in parts),
            reasoning="".join(part.reasoning for part in parts),
            tool_calls=tuple(call for part in parts for call in part.tool_calls),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            num_input_tokens=max((part.num_input_tokens for part in parts), default=0),
            num_output_tokens=sum(part.num_output_tokens for part in parts),
            num_reasoning_tokens=sum(part.num_reasoning_tokens for part in parts),
            denoise_steps=sum(part.denoise_steps for part in parts),
            log_probs=tuple(value for part in parts for value in part.log_probs),
            top_log_probs=tuple(top for part in parts for top in part.top_log_probs),
            step_map=tuple(step for part in parts for step in part.step_map),
            seconds=last.elapsed,
            seconds_to_first_block=parts[0].elapsed if parts else 0.0,
            has_malformed_tool_call=any(part.has_malformed_tool_call for part in parts),
        )

    @property
    def tokens_per_forward(self) -> float | None:
        """Output tokens per denoise step (TPF); None before the first step."""
        return self.num_output_tokens / self.denoise_steps if self.denoise_steps else None

    @property
    def tokens_per_second(self) -> float | None:
        return self.num_output_tokens / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True)
class ModelHealth:
    """One model of the server's repository."""

    name: str
    is_ready: bool
    state: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Health:
    """What the server says of itself. ``error`` is set when it could not be asked."""

    url: str
    model: str
    is_live: bool = False
    is_ready: bool = False
    server_version: str = ""
    models: tuple[ModelHealth, ...] = ()
    limits: dict[str, int | float | str] = field(default_factory=dict)
    error: str | None = None

    @property
    def is_healthy(self) -> bool:
        """Live, ready, and the model that this client calls is ready."""
        return self.is_live and self.is_ready and self.is_model_ready(self.model)

    def is_model_ready(self, name: str) -> bool:
        return any(model.name == name and model.is_ready for model in self.models)
