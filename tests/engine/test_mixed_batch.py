"""A thousand requests that ask for everything at once: each gets what it gets alone."""

from dataclasses import replace
from typing import Any

from blockdiff.core import BlockResult
from blockdiff.decoding.acceptance import ALGORITHMS
from blockdiff.engine import Engine, EngineConfig

from .byte_tokens import ByteTokens
from .fakes import HashModel, info, run
from .mixed import mixed_requests

COUNT, SIZE = 1000, 64
FACTS: dict[str, Any] = {"vocab_size": SIZE, "mask_token_id": 63, "eos_token_ids": (62,)}


def make_engine(**settings: Any) -> Engine:
    facts = info(**FACTS, algorithms=ALGORITHMS, supports_editing=True)
    tokens = ByteTokens(SIZE, {62, 63})
    return Engine(HashModel(facts), EngineConfig(max_context=64, **settings), tokens)


def comparable(results: list[BlockResult]) -> list[BlockResult]:
    """All but how many rounds of which kind it took, which depends on company."""
    return [replace(result, forwards=None) for result in results]


def test_a_thousand_mixed_requests_equal_their_solo_runs() -> None:
    # little memory: requests are suspended and begin anew, prefixes are shared
    crowded = make_engine(max_slots=24, kv_cache_bytes=16 * 16, prefill_token_budget=40)
    wanted, times = mixed_requests(crowded, COUNT, seed=11)
    rare = {name: count for name, count in times.items() if count < COUNT // 50}
    assert not rare, "every field is given to some"
    together = run(crowded, wanted)
    assert crowded.counters.suspensions > 0 and crowded.counters.hit_tokens > 0
    alone = make_engine(max_slots=1)
    for one in wanted:
        (expected,) = run(alone, [one]).values()
        assert comparable(together[one.uid]) == comparable(expected), one
