"""The nouns of the engine: data only, with a note on who fills what.

Knows nothing of tensors, tokenizers, threads or Triton Inference Server.
"""

from dataclasses import dataclass, field
from enum import Enum, IntEnum


class Phase(IntEnum):
    """What a segment of rows does in a round."""

    PREFILL = 0  # commit of prompt tokens: writes KV and recurrent state
    PREVIEW = 1  # denoise step over a canvas: reads caches, writes none
    COMMIT = 2  # forward over final tokens: writes KV and recurrent state


class _Text(str, Enum):
    """String enum whose str() is its value (StrEnum needs Python 3.11)."""

    def __str__(self) -> str:
        return str(self.value)


class Mode(_Text):
    DIFFUSION = "diffusion"
    AUTOREGRESSIVE = "autoregressive"


class FinishReason(_Text):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"


@dataclass(frozen=True)
class Ramp:
    """A boost of some tokens that grows with the response.

    At place p, counted from the first output token, their logits get
    min(``most``, ``slope`` * (p - ``start``)), and nothing up to ``start``.
    """

    start: int
    slope: float
    most: float
    token_ids: tuple[int, ...] | None = None  # None: the end tokens of the request
    is_once: bool = False  # a token that the response holds already is not boosted any more


@dataclass(frozen=True)
class SamplingParams:
    """How a token is chosen from logits. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0
    are off.

    Penalties, ``logit_bias`` (pairs of token id and what its logit gets) and ``ramps`` change the
    distribution itself, hence confidences and log probs too; the other fields only bar choices.
    Penalties count tokens of the response: ``repetition_penalty`` divides positive logits of
    tokens that it holds and multiplies negative ones (1 is off), ``presence_penalty`` is taken off
    once, ``frequency_penalty`` for each time (0 is off).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0  # least probability of a drawn token, as a share of the best one's
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    ramps: tuple[Ramp, ...] = ()


@dataclass(frozen=True)
class DecodingParams:
    """How a block is decided. ``None`` means the model's own default (resolved by the engine).

    ``denoise_steps`` given: fixed schedule of that many previews per block (``threshold`` is then
    unused unless given too: positions above it are accepted early). Otherwise ``threshold`` rules.
    ``algorithm`` None: the model's first. ``entropy_bound`` (nats) belongs to the algorithms
    ``entropy_bounded`` and ``entropy_bound``; the latter alone has the four fields from ``t_min``
    on, and takes ``denoise_steps`` as the most steps of a canvas. ``editing_threshold``
    switches token editing on: decided tokens may still change, for at most ``max_post_steps``
    previews after the last mask is gone, and a preview fills at least ``num_to_transfer`` masks.
    ``is_elastic`` allows an engine with load-aware decoding to lower threshold and steps of blocks
    while other requests wait; output then depends on the load.
    """

    mode: Mode = Mode.DIFFUSION
    algorithm: str | None = None
    block_length: int | None = None
    denoise_steps: int | None = None
    threshold: float | None = None
    entropy_bound: float | None = None
    editing_threshold: float | None = None
    max_post_steps: int | None = None
    num_to_transfer: int = 1
    t_min: float | None = None
    t_max: float | None = None
    stability_threshold: int | None = None
    confidence_threshold: float | None = None
    is_elastic: bool = False


class GuideKind(_Text):
    """What language the text of a guide is in."""

    JSON = "json"  # any JSON object; the text is empty
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF_GRAMMAR = "ebnf_grammar"  # GBNF or Lark
    TOOL_CALLS = "tool_calls"  # Lark that may name control tokens; made by ``text.tool_guides``


@dataclass(frozen=True)
class Guide:
    """What an answer must be. It holds for the text after thinking.

    ``think`` is what the prompt says of that: ``open``, it ends inside a think block, after which
    the guide begins; ``unknown``, the answer may begin with one; ``closed``, there is none.
    """

    kind: GuideKind
    text: str = ""
    think: str = "closed"


@dataclass(frozen=True)
class Thinking:
    """How long an answer may think before it has to begin.

    A think block stands between ``start`` and ``end``, at the beginning of the answer; after
    ``budget`` tokens of it ``end_ids`` are given.
    """

    budget: int
    end_ids: tuple[int, ...]
    is_open: bool = False  # the prompt ends inside a think block
    start: str = "<think>"
    end: str = "</think>"


@dataclass(frozen=True)
class Request:
    """One generation. Filled by the caller (CLI or serving), never changed afterwards."""

    uid: int
    input_ids: tuple[int, ...]
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    eos_ids: tuple[int, ...] | None = None  # None: the model's own
    stop_ids: tuple[int, ...] = ()  # end like the ``eos_ids``, whatever ``ignore_eos`` says
    stop_strings: tuple[str, ...] = ()
    thinking: Thinking | None = None  # None: no limit
    sampling: SamplingParams = field(default_factory=SamplingParams)
    decoding: DecodingParams = field(default_factory=DecodingParams)
    deadline: float | None = None  # time.monotonic() seconds
    priority: int = 0
    """Among running requests the lowest number goes first, for prefill and when memory is short;
    a request that many later ones have passed rises."""
    # Given output: (place counted from the first output token, token id), in any order. Part of the
    # output with log prob 0. An end token that is given, or decided before one, ends the answer
    # like any other: ``min_tokens`` or ``ignore_eos`` keeps a request going to its last pin.
    pinned: tuple[tuple[int, int], ...] = ()
    wants_canvases: bool = False  # a result after every preview, not only where a block is finished
    num_top_log_probs: int = 0  # most probable tokens that results list for each output token
    guide: Guide | None = None
    # Never part of the output, wherever the borders between its tokens lie.
    bad_strings: tuple[str, ...] = ()
    wants_step_map: bool = False  # whether results say which step settled each token


@dataclass
class ForwardCounts:
    """Engine rounds in which a request had rows, by what the rows did."""

    prefill: int = 0
    preview: int = 0
    commit: int = 0
    commit_fused: int = 0  # commits that rode along with a preview of the same request


class PlaceState(IntEnum):
    """What is known of one place of an open block."""

    MASKED = 0  # its token is a guess that was not accepted
    OPEN = 1  # its token may still change
    SETTLED = 2


@dataclass(frozen=True)
class Canvas:
    """An open block as a preview left it. Filled by the engine, [n] each.

    Confidences (natural log) are those of the preview that accepted a token, or of the last one.
    """

    step: int  # from 0 in its block
    first_place: int  # counted from the first output token
    token_ids: tuple[int, ...]  # -1: nothing is known of the place
    log_probs: tuple[float, ...]
    states: tuple[PlaceState, ...]


@dataclass(frozen=True)
class BlockResult:
    """One finished block of one request, as the engine hands it out. Filled by the engine.

    ``token_ids`` are already cut: nothing after EOS / max_tokens / the token that completes a stop
    string; the ending EOS or stop id is included. Exactly one result per request has ``is_final``.
    """

    request_uid: int
    block_index: int
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]  # natural log of the confidence, one per token
    denoise_steps: int
    num_input_tokens: int
    is_final: bool = False
    finish_reason: FinishReason | None = None  # set when final
    stop_reason: str = ""  # the stop string or the EOS token id that ended the request
    forwards: ForwardCounts | None = None  # set when final
    error: str | None = None  # set (final) when the request failed inside the engine
    threshold: float | None = None  # that decided the block; None: its rule has none
    step_cap: int | None = None  # steps of its schedule, or the most it could take; None: no limit
    canvas: Canvas | None = None  # of the last preview, where the request wants canvases
    is_partial: bool = False  # nothing but a canvas: its block is not finished, nothing counts
    # One per token, where the request wants them; of the last edit where a token was edited.
    settled_steps: tuple[int, ...] = ()  # from 0 in its block; -1: the request gave the token
    top_log_probs: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Most probable tokens at that step and their natural log probs, best first; none for pins."""
