"""The tables of resources in short, as perf/RESULTS.md has them: a line for each kernel.

python -m tests.aot.summary             print the lines
python -m tests.aot.summary --write     put them into perf/RESULTS.md
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from tests.aot.table import op_names, read_table

RESULTS = Path(__file__).parents[2] / "perf" / "RESULTS.md"
BEGIN, END = "<!-- registers -->", "<!-- /registers -->"
DEVICES = ("80", "90", "100")


def summary() -> str:
    """A Markdown table: the most that any compiled form of a kernel takes on each GPU."""
    head = "| op | kernel | forms | registers, sm_80 / 90 / 100 | shared KB, sm_90 "
    lines = [
        head + "| least blocks per SM, sm_90 | wgmma, sm_90 |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*lines, *(line for op in op_names() for line in _lines(op))])


def _lines(op: str) -> Iterator[str]:
    rows = read_table(op)
    for kernel in sorted({row["kernel"] for row in rows}):
        own = [row for row in rows if row["kernel"] == kernel]
        on = {sm: [row for row in own if row["sm"] == sm] for sm in DEVICES}
        registers = " / ".join(str(max(int(r["registers"]) for r in on[sm])) for sm in DEVICES)
        hopper = on["90"]
        shared = max(int(row["shared"]) for row in hopper)
        blocks = min(int(row["blocks_per_sm"]) for row in hopper)
        with_wgmma = sum(int(row["wgmma"]) > 0 for row in hopper)
        wgmma = f"{with_wgmma} of {len(hopper)}" if with_wgmma else "-"
        cells = (op, f"`{kernel}`", len(hopper), registers, f"{shared / 1024:.0f}", blocks, wgmma)
        yield "| " + " | ".join(map(str, cells)) + " |"


def stored() -> str:
    """The lines in perf/RESULTS.md."""
    return RESULTS.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()


def write() -> None:
    """Replace them."""
    before, rest = RESULTS.read_text(encoding="utf-8").split(BEGIN)
    text = f"{before}{BEGIN}\n\n{summary()}\n\n{END}{rest.split(END)[1]}"
    RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write() if "--write" in sys.argv[1:] else print(summary())
