"""Requests that run every kind of round once: prefill, preview, riding commit, autoregressive.

Knows a model's facts and an engine's settings; knows nothing of rounds.
"""

from collections.abc import Iterator

from blockdiff.core import DecodingParams, Mode, Request, SamplingParams
from blockdiff.engine.config import EngineConfig
from blockdiff.models.base import ModelInfo

_UID = -1


def warm_up_requests(
    info: ModelInfo, config: EngineConfig, longest: int
) -> Iterator[list[Request]]:
    """Requests that run together, for each mode; ``longest``: tokens that one may take."""
    for mode in Mode:
        is_single = mode is Mode.AUTOREGRESSIVE
        if info.supports_autoregressive if is_single else info.decodes_blocks:
            yield _requests(mode, info, config, longest)


def _requests(mode: Mode, info: ModelInfo, config: EngineConfig, longest: int) -> list[Request]:
    max_tokens = 2 if mode is Mode.AUTOREGRESSIVE else info.block_length + 1
    max_tokens = min(max_tokens, config.max_output_tokens, longest - 1)
    prompt_length = min(config.prefill_token_budget, longest - max_tokens)
    found = []
    for number in range(config.max_slots):
        # The first prompt fills a round alone; the others are short and decode together.
        length = prompt_length if number == 0 else min(prompt_length, info.block_length)
        sampling, decoding = _choices(mode, info, is_sampled=number % 2 > 0)
        found.append(
            Request(
                uid=_UID - number,
                input_ids=(0,) * length,
                max_tokens=max_tokens,
                ignore_eos=True,
                sampling=sampling,
                decoding=decoding,
            )
        )
    return found


def _choices(
    mode: Mode, info: ModelInfo, is_sampled: bool
) -> tuple[SamplingParams, DecodingParams]:
    """Parameters that take one preview per block."""
    if info.uniform is not None:
        return SamplingParams(), DecodingParams(mode, denoise_steps=1)
    threshold = None if mode is Mode.AUTOREGRESSIVE else 0.0
    sampling = SamplingParams(temperature=1.0 if is_sampled else 0.0, top_p=0.9)
    return sampling, DecodingParams(mode, threshold=threshold)
