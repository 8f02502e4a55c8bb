"""Compiles every kernel at every production shape and prints the table of what it takes.

python -m tests.aot                     all ops, as JSON lines on stdout
python -m tests.aot moe head            the ops named
python -m tests.aot --write norm        also rewrite the ops' files in tests/aot/resources
"""

import argparse
import json
import os

from tests.aot.table import TABLES, compile_all, op_names, write_tables


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ops", nargs="*", help="all if none is named")
    parser.add_argument("--write", action="store_true", help=f"rewrite files in {TABLES.name}")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    rows = compile_all(given.ops or op_names(), given.workers)
    for row in rows:
        print(json.dumps(row), flush=True)
    if given.write:
        write_tables(rows)


if __name__ == "__main__":
    main()
