"""The table of what every kernel takes at every production shape, and how it is made.

Knows nothing of what is acceptable; test_resources.py does.
"""

import csv
import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.aot.background import die_with
from tests.aot.case import Case
from tests.aot.devices import LIMITS, blocks_per_sm

HERE = Path(__file__).parent
TABLES = HERE / "resources"
Row = dict[str, Any]


def op_names() -> list[str]:
    """Ops that have cases."""
    return sorted(path.stem for path in (HERE / "cases").glob("[a-z]*.py"))


def compile_all(ops: Sequence[str], workers: int) -> list[Row]:
    """Rows sorted by kernel and device; a line on stderr for each kernel done."""
    jobs = [(op, capability) for op in ops for capability in LIMITS]
    rows: list[Row] = []
    pool = ProcessPoolExecutor(
        workers,
        mp_context=get_context("spawn"),
        # a worker whose parent is gone would compile its whole op, and then wait for ever
        initializer=die_with,
        initargs=(os.getpid(),),
    )
    with pool:
        for found in pool.map(_compile_op, *zip(*jobs, strict=True)):
            rows += found
            print(f"aot: {len(rows)} kernels", file=sys.stderr, flush=True)
    return sorted(rows, key=lambda row: (row["op"], row["kernel"], row["constants"], row["sm"]))


def _compile_op(op: str, capability: tuple[int, int]) -> list[Row]:
    # only here, so that looking at the table needs no compiler
    from tests.aot.compiling import collect, compile_kernel

    assert os.environ.get("TRITON_INTERPRET") != "1", "the interpreter has no kernels to compile"
    cases: list[Case] = importlib.import_module(f"tests.aot.cases.{op}").CASES
    rows = []
    for kernel, found in collect(cases, capability).items():
        needs = compile_kernel(kernel, found.function)
        warps = dict(kernel.options)["num_warps"]
        limits = LIMITS[capability]
        rows.append(
            {
                "op": op,
                "kernel": kernel.name,
                "constants": _describe(kernel.constants),
                "sm": capability[0] * 10 + capability[1],
                "warps": warps,
                "stages": dict(kernel.options)["num_stages"],
                "registers": needs.registers,
                "stack": needs.stack,
                "shared": needs.shared,
                "wgmma": needs.wgmma,
                "mma": needs.mma,
                "blocks_per_sm": blocks_per_sm(limits, needs.registers, needs.shared, warps),
                "fits": needs.shared <= limits.shared_per_block,
                "wants_wgmma": any(kernel.name in case.wants_wgmma for case in found.cases),
                "cases": " ".join(sorted({case.name for case in found.cases})),
            }
        )
    return rows


def _describe(constants: Iterable[tuple[str, Any]]) -> str:
    return " ".join(f"{name}={value}" for name, value in constants)


def write_tables(rows: Sequence[Row]) -> None:
    """What a review sees changes of: a file per op of ``rows``."""
    TABLES.mkdir(exist_ok=True)
    for op in sorted({row["op"] for row in rows}):
        own = [row for row in rows if row["op"] == op]
        with (TABLES / f"{op}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(own[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(own)


def read_table(op: str) -> list[dict[str, str]]:
    """The checked-in rows of ``op``, as text."""
    with (TABLES / f"{op}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
