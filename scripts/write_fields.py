"""Write what follows the field table: docs/fields.md and the tensors of the public models.

Run it after a change of ``blockdiff.serving.fields``; ``tests/unit/serving`` compares the files.
"""

import re
from pathlib import Path

from blockdiff.serving.fields import BY_NAME, CANONICAL, OUTPUTS
from blockdiff.serving.fields_page import page

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = ROOT / "model_repository"


def main() -> None:
    """Rewrite the page and the sections of every config.pbtxt that the table rules."""
    (ROOT / "docs" / "fields.md").write_text(page(), encoding="utf-8")
    inputs = [
        f'  {{ name: "{name}", data_type: {BY_NAME[field].kind.value}, '
        f"dims: [ {BY_NAME[field].dims} ], optional: true }}"
        for name, field in CANONICAL.items()
    ]
    outputs = [
        f'  {{ name: "{output.name}", data_type: {output.kind.value}, dims: [ {output.dims} ] }}'
        for output in OUTPUTS
    ]
    for model in ("preprocessing", "ensemble", "unary"):
        _write_section(model, "input", inputs)
    for model in ("postprocessing", "ensemble", "unary"):
        _write_section(model, "output", outputs)
    _write_maps("preprocessing", "input_map", list(CANONICAL))
    _write_maps("postprocessing", "output_map", [output.name for output in OUTPUTS])


def _write_section(model: str, section: str, lines: list[str]) -> None:
    path = REPOSITORY / model / "config.pbtxt"
    text = path.read_text(encoding="utf-8")
    body = f"{section} [\n" + ",\n".join(lines) + "\n]"
    written, count = re.subn(rf"^{section} \[\n.*?\n\]", body, text, flags=re.M | re.S)
    assert count == 1, f"{path} has one section {section}"
    path.write_text(written, encoding="utf-8")


def _write_maps(step: str, kind: str, names: list[str]) -> None:
    """The ensemble's maps of ``step`` whose tensors keep their names."""
    path = REPOSITORY / "ensemble" / "config.pbtxt"
    text = path.read_text(encoding="utf-8")
    at = text.index(f'model_name: "{step}"')
    lines = [f'      {kind} {{ key: "{name}" value: "{name}" }}\n' for name in names]
    own = rf'(?:      {kind} \{{ key: "(\w+)" value: "\1" \}}\n)+'
    written, count = re.subn(own, "".join(lines), text[at:], count=1)
    assert count == 1, f"{path} has maps of {step}"
    path.write_text(text[:at] + written, encoding="utf-8")


if __name__ == "__main__":
    main()
