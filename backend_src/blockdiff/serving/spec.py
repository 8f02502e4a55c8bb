"""What travels between the models of the repository: the validated request and its text context.

``preprocessing`` fills a RequestSpec, ``block_diffusion`` turns it into an engine request and hands
its TextContext on to ``postprocessing``. Knows no tensors.
"""

from dataclasses import fields
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from blockdiff.core import DecodingParams, Guide, Ramp, Request, SamplingParams, Thinking
from blockdiff.errors import RequestError

_SAMPLING = tuple(item.name for item in fields(SamplingParams))


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TextContext(_Wire):
    """What ``postprocessing`` has to know of a request; sent with its first block only."""

    stop_words: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    includes_stop: bool = False
    min_tokens: int = 0
    is_chat: bool = False
    think: Literal["open", "closed", "unknown"] = "unknown"
    tool_form: str | None = None
    """How the model writes calls; None: none are looked for."""
    tools: dict[str, dict[str, list[str]]] = {}
    """The functions offered: for each its parameters, for each of those its JSON types."""
    echo: str = ""
    return_log_probs: bool = False
    top_logprobs: int = 0
    return_step_map: bool = False
    return_num_input_tokens: bool = True
    return_num_output_tokens: bool = True


class RequestSpec(_Wire):
    """A validated request without its token ids."""

    max_tokens: int
    stream: bool = False
    ignore_eos: bool = False
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ramps: tuple[Ramp, ...] = ()
    algorithm: str | None = None
    block_length: int | None = None
    denoise_steps: int | None = None
    threshold: float | None = None
    is_elastic: bool = False
    guide: Guide | None = None
    thinking: Thinking | None = None
    stream_denoise: bool = False
    pinned: tuple[tuple[int, int], ...] = ()
    priority: int = 0
    bad_words: tuple[str, ...] = ()
    received_at: float | None = None
    """time.monotonic() of this machine when the request arrived."""
    text: TextContext = TextContext()

    def engine_request(
        self, uid: int, input_ids: tuple[int, ...], deadline: float | None
    ) -> Request:
        """The engine's own form of this request."""
        return Request(
            uid=uid,
            input_ids=input_ids,
            max_tokens=self.max_tokens,
            min_tokens=self.text.min_tokens,
            ignore_eos=self.ignore_eos,
            stop_ids=self.text.stop_token_ids,
            stop_strings=self.text.stop_words,
            sampling=SamplingParams(**{name: getattr(self, name) for name in _SAMPLING}),
            decoding=DecodingParams(
                algorithm=self.algorithm,
                block_length=self.block_length,
                denoise_steps=self.denoise_steps,
                threshold=self.threshold,
                is_elastic=self.is_elastic,
            ),
            deadline=deadline,
            num_top_log_probs=self.text.top_logprobs,
            wants_step_map=self.text.return_step_map,
            wants_canvases=self.stream_denoise,
            pinned=self.pinned,
            guide=self.guide,
            thinking=self.thinking,
            priority=self.priority,
            bad_strings=self.bad_words,
        )


def parse_spec(text: str) -> RequestSpec:
    """Reads ``request_spec``; callers that skip ``preprocessing`` get a clear refusal too."""
    try:
        return RequestSpec.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "JSON"
        raise RequestError(f"request_spec: {place}: {first['msg']}") from error
