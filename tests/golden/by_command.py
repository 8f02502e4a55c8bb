"""Golden entries through ``blockdiff generate`` and ``blockdiff logits``, against the reference.

Run: python -m tests.golden.by_command [CASE ...], for example llada2_moe/block8. Holds no tests.
"""

import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from blockdiff.cli.main import run

from . import cases


def check_case(case: str, scratch: Path) -> tuple[int, list[str]]:
    """Number of entries compared, and what differs."""
    entries = cases.entries(case)
    generated = [entry for entry in entries if entry["kind"] == "generate"]
    others = [entry for entry in entries if entry["kind"] != "generate"]
    problems = _check_tokens(case, generated, scratch) if generated else []
    return len(entries), problems + _check_tensors(case, others, scratch)


def _check_tokens(case: str, entries: list[dict[str, Any]], scratch: Path) -> list[str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = run(["generate", *_words(case, entries, scratch), "--format", "json"])
    if code != 0:
        return [f"blockdiff generate: exit code {code}"]
    problems = []
    for entry, line in zip(entries, printed.getvalue().splitlines(), strict=True):
        got, want = json.loads(line), entry["expected"]
        found = (got["name"], got["output_ids"], got["finish_reason"])
        if found != (entry["name"], want["token_ids"], want["finish_reason"]):
            problems.append(f"{entry['name']}: {found[1:]}")
    return problems


def _check_tensors(case: str, entries: list[dict[str, Any]], scratch: Path) -> list[str]:
    out = scratch / "logits.safetensors"
    code = run(["logits", *_words(case, entries, scratch), "--out", str(out)])
    if code != 0:
        return [f"blockdiff logits: exit code {code}"]
    got, problems = load_file(out), []
    for entry in entries:
        for role, want in cases.expected_roles(case, entry).items():
            try:
                cases.assert_within(entry, role, got[f"{entry['name']}/{role}"], want)
            except (AssertionError, KeyError) as error:
                problems.append(f"{entry['name']}: {error}")
    return problems


def _words(case: str, entries: list[dict[str, Any]], scratch: Path) -> list[str]:
    lines = scratch / "requests.jsonl"
    lines.write_text("\n".join(map(cases.as_line, entries)) + "\n\n")
    return ["--model", str(cases.FIXTURES / case), "--requests", str(lines), "--dtype", "float32"]


def main() -> int:
    """Check the cases named, or all; one line per case."""
    bad = 0
    for case in sys.argv[1:] or cases.CASES:
        with tempfile.TemporaryDirectory() as scratch:
            count, problems = check_case(case, Path(scratch))
        bad += len(problems)
        print(f"{case}: {count} entries, {len(problems)} differ", *problems, sep="\n  ")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
