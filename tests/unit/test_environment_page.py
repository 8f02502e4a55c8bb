"""docs/env.md lists every variable that the sources read."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("backend_src", "kernels", "client", "gateway", "demo", "scripts", "tests")
NAME = re.compile(r"[\"'](BLOCKDIFF_[A-Z_]+|ALLOW_[A-Z_]+)[\"']")


def test_page_and_sources_agree() -> None:
    # This file and the tests of refusals hold names that do not exist.
    read = {
        name
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if "unit" not in path.parts
        for name in NAME.findall(path.read_text("utf-8"))
    }
    page = (ROOT / "docs" / "env.md").read_text()
    listed = set(re.findall(r"^\| `((?:BLOCKDIFF|ALLOW)_[A-Z_]+)`", page, re.MULTILINE))
    assert read == listed
