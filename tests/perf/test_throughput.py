"""The benchmark against public loops, on a minuscule model and one loop in its own process."""

import pytest

from blockdiff.errors import ConfigError
from perf.checkpoints import ModelSize
from perf.comparison import Row, Workload
from perf.sides import OURS, check_names
from perf.tables import forwards_table, speed_table
from perf.throughput import Plan, measure

SIZE = ModelSize(
    hidden=32, layers=2, heads=4, head_dim=8, experts=4, chosen=2, inner=16, vocabulary=64, block=8
)
LOOP = "llada2-loop"


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], list[Row]]:
    plan = Plan(
        size=SIZE,
        peers=[LOOP],
        levels=[1, 3],
        thresholds=[0.9, 0.0],
        repeats=2,
        threads=1,
        gap=0.002,
        workload=Workload(24, 16, SIZE.block, 4, SIZE.vocabulary, SIZE.vocabulary - 1),
    )
    return measure(plan, tmp_path_factory.mktemp("bench"))


def test_same_tokens_in_no_more_forwards(measured: tuple[list[Row], list[Row]]) -> None:
    speeds, forwards = measured
    assert [row.side for row in speeds + forwards] == [OURS, LOOP] * 5
    assert all(row.has_equal_tokens for row in speeds + forwards)
    alone = [row.forwards for row in speeds if row.scenario == "sdar_moe, 1 together"]
    assert alone == [8, 8]
    ours = [row.forwards for row in forwards if row.side == OURS]
    theirs = [row.forwards for row in forwards if row.side == LOOP]
    # a threshold of zero settles a block at once, one of 0.9 takes several steps
    assert ours == theirs and ours[1] == 2 and ours[0] > 2


def test_tables_name_every_row(measured: tuple[list[Row], list[Row]]) -> None:
    speeds, forwards = measured
    text = speed_table(speeds) + forwards_table(forwards)
    assert text.count(f"| {LOOP} |") == 5 and text.count("| equal |") == 5


def test_unknown_peers_are_refused() -> None:
    with pytest.raises(ConfigError, match="peers: 'sglang' is unknown; allowed: llada2-loop, "):
        check_names(["sdar-loop", "sglang"])
