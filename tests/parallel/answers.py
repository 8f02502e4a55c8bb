"""What a model answers to a fixed set of requests, to compare it with itself in parts. No tests."""

from blockdiff.core import DecodingParams, Mode, Request, SamplingParams
from blockdiff.engine import Engine, EngineConfig
from blockdiff.jobs import Job, Outcome, run_jobs
from blockdiff.models.base import BlockDiffusionModel, ModelInfo

SHORT, STEP, REQUESTS, MAX_TOKENS = 3, 9, 4, 16
LONGEST = SHORT + STEP * (REQUESTS - 1) + MAX_TOKENS


def decode(model: BlockDiffusionModel) -> list[list[int]]:
    """Tokens, after a warm-up, of requests of every way to decode, which share rounds.

    Prompts are prefilled in chunks, and some start while others run.
    """
    ways = _ways(model.info)
    jobs = [
        Job(
            Request(
                uid,
                tuple(2 + (7 * uid + place) % 29 for place in range(SHORT + STEP * uid)),
                MAX_TOKENS,
                decoding=ways[uid % len(ways)],
                sampling=SamplingParams(seed=uid),
            ),
            None,
        )
        for uid in range(REQUESTS)
    ]
    settings = EngineConfig(max_slots=3, max_context=LONGEST + 1, prefill_token_budget=16)
    engine = Engine(model, settings)
    engine.warm_up()
    outcomes: list[Outcome] = run_jobs(engine, jobs)
    return [outcome.output_ids for outcome in outcomes]


def _ways(info: ModelInfo) -> list[DecodingParams]:
    """Blocks as the model was trained for them, and token by token."""
    ways = []
    if info.uniform is not None:
        ways.append(DecodingParams(denoise_steps=6, entropy_bound=0.7))
    elif info.decodes_blocks:
        ways.append(DecodingParams(threshold=0.6))
    if info.supports_autoregressive:
        ways.append(DecodingParams(Mode.AUTOREGRESSIVE))
    return ways
