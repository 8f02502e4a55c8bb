"""The benchmark of the host loop still finds every stage that it shows.

Run: pytest tests/engine/test_host_loop.py
"""

from perf.host_loop import host_time
from perf.stages import STAGES


def test_every_stage_takes_time() -> None:
    found = host_time(slots=4, rounds=64, block_length=4, steps=2)
    assert list(found["stages_us"]) == [stage for stage, *_ in STAGES]
    assert all(spent > 0 for spent in found["stages_us"].values())
    # watching costs something, so its sum is no less than the time without it
    assert sum(found["stages_us"].values()) > found["cpu_us"] / 2 > 0
