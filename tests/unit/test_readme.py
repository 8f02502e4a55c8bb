"""The README names what there is: fields, models, targets of make, files it points to."""

import re
from pathlib import Path

from blockdiff.cli.main import COMMANDS
from blockdiff.serving.fields_page import page

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_page_of_fields_follows_the_table() -> None:
    assert "(docs/fields.md)" in README
    assert (ROOT / "docs" / "fields.md").read_text("utf-8") == page(), "run scripts/write_fields.py"


def test_commands_and_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for command in COMMANDS:
        assert f"blockdiff {command}" in README, command


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    for target in targets:
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_continuous_integration_runs_its_test_command() -> None:
    last = (ROOT / ".ci" / "run").read_text("utf-8").strip().splitlines()[-1]
    assert last == "make test" and "\n    make test\n" in README
