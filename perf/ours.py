"""This project's engine as the benchmark's own side: the same jobs, in this process.

Knows the engine's calls; knows nothing of peers.
"""

import time
from collections.abc import Callable

from blockdiff.checkpoint import load_model
from blockdiff.core import DecodingParams, Request
from blockdiff.engine import Engine, EngineConfig
from perf.peers.protocol import Job, Outcome, Setup, wait_until

# request number, job -> how its blocks are decided
Decoding = Callable[[Job], DecodingParams]


def masked_decoding(job: Job) -> DecodingParams:
    """Blocks of masks, by schedule or by threshold."""
    steps = job.steps if job.threshold is None else None
    return DecodingParams(
        block_length=job.block_length, denoise_steps=steps, threshold=job.threshold
    )


def canvas_decoding(job: Job) -> DecodingParams:
    """Canvases of random tokens that take all their steps."""
    return DecodingParams(denoise_steps=job.steps, confidence_threshold=0.0)


class OurEngine:
    """One loaded model; every job gets an engine of its own, made before the clock starts."""

    def __init__(self, setup: Setup, decoding: Decoding = masked_decoding) -> None:
        self._model = load_model(setup.folder)
        self._threads = setup.threads
        self._decoding = decoding

    def run(self, job: Job) -> Outcome:
        """See ``Peer``."""
        engine = self._engine(job)
        requests = [
            Request(
                uid=number,
                input_ids=tuple(prompt),
                max_tokens=job.max_tokens,
                ignore_eos=True,
                decoding=self._decoding(job),
            )
            for number, prompt in enumerate(job.prompts)
        ]
        return drive(engine, requests, job.arrivals)

    def _engine(self, job: Job) -> Engine:
        count, longest = len(job.prompts), max(map(len, job.prompts))
        config = EngineConfig(
            max_slots=count,
            max_context=longest + job.max_tokens,
            num_threads=self._threads,
        )
        return Engine(self._model, config)


def drive(engine: Engine, requests: list[Request], arrivals: list[float]) -> Outcome:
    """Run ``requests`` (uids 0, 1, ...), each admitted at its arrival in seconds from the start."""
    tokens: list[list[int]] = [[] for _ in requests]
    finished = [0.0] * len(requests)
    waiting = sorted(range(len(requests)), key=lambda number: arrivals[number])
    start = time.monotonic()
    while waiting or engine.has_work:
        if not engine.has_work:
            wait_until(start + arrivals[waiting[0]])
        while waiting and arrivals[waiting[0]] <= time.monotonic() - start:
            engine.add_request(requests[waiting.pop(0)])
        for result in engine.step():
            assert result.error is None, result.error
            tokens[result.request_uid] += result.token_ids
            if result.is_final:
                finished[result.request_uid] = time.monotonic() - start
    return Outcome(tokens, engine.counters.rounds, finished)
