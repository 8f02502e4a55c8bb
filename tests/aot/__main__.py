"""Compiles every kernel at every production shape and prints what it takes, one JSON line each.

    python -m tests.aot                 all ops: some five minutes on two free cores
    python -m tests.aot norm rope       the ops named: half a minute
    python -m tests.aot --write norm    also rewrite the ops' files in tests/aot/resources

A line's "constants" are the kernel's constants, tile sizes among them; "shared" is in bytes.
"stack" must be 0 (nothing spills), "wgmma" and "mma" count instructions, "blocks_per_sm" is how
many programs a multiprocessor holds, and "cases" are the calls in tests/aot/cases that start it.
"""

import argparse
import json
import os

from tests.aot.background import die_with
from tests.aot.table import TABLES, compile_all, op_names, write_tables


def main() -> None:
    """See the module."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tests.aot", description=__doc__, formatter_class=form
    )
    cores = os.cpu_count() or 1
    parser.add_argument("ops", nargs="*", help="all if none is named")
    parser.add_argument("--write", action="store_true", help=f"rewrite files in {TABLES.name}")
    parser.add_argument("--workers", type=int, default=cores, help="processes (%(default)s)")
    parser.add_argument("--parent", type=int, help="end when this process does, which started it")
    given = parser.parse_args()
    if given.parent is not None:
        die_with(given.parent)
    unknown = [op for op in given.ops if op not in op_names()]
    if unknown:
        parser.error(f"{unknown[0]!r} has no cases; some of {', '.join(op_names())}")
    rows = compile_all(given.ops or op_names(), given.workers)
    for row in rows:
        print(json.dumps(row), flush=True)
    if given.write:
        write_tables(rows)


if __name__ == "__main__":
    main()
