"""Rows of measurements as Markdown tables. Knows nothing of how they were measured."""

from collections.abc import Sequence

from perf.comparison import Row
from perf.sides import KINDS, OURS


def speed_table(rows: list[Row]) -> str:
    """Tokens per second by scenario and side, with our ratio to each side."""
    head = (
        "scenario",
        "side",
        "tokens/s",
        "lowest to highest",
        "tokens / CPU s",
        "forwards",
        "mean finish, s",
        "ours / theirs",
        "by CPU time",
        "tokens",
    )
    return markdown(head, [_speed_cells(row) for row in rows])


def _speed_cells(row: Row) -> tuple[str, ...]:
    is_ours = row.side == OURS
    return (
        row.scenario,
        row.side,
        f"{row.tokens_per_second:.1f}",
        f"{min(row.samples):.1f} to {max(row.samples):.1f}",
        f"{row.tokens_per_cpu_second:.1f}",
        str(row.forwards),
        f"{row.mean_finish:.2f}",
        "" if is_ours else f"{row.ratio:.2f}",
        "" if is_ours else f"{row.cpu_ratio:.2f}",
        _equality(row),
    )


def forwards_table(rows: list[Row]) -> str:
    """Forwards of one request by threshold and side."""
    head = ("scenario", "side", "forwards", "forwards per token", "tokens")
    cells = [
        (row.scenario, row.side, str(row.forwards), f"{row.forwards_per_token:.3f}", _equality(row))
        for row in rows
    ]
    return markdown(head, cells)


def _equality(row: Row) -> str:
    if row.side == OURS:
        return ""
    if not KINDS[row.side].has_same_tokens:
        return "other maths"
    return "equal" if row.has_equal_tokens else "DIFFER"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; the numbers of ``head`` and of every row's cells agree."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
