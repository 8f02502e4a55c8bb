"""What users write never becomes control tokens, however templates and parts cut and join it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockdiff.text import Tokenizer
from blockdiff.text.shield import Shield, unshield
from tests.server.texts import MARKERS, SPECIAL

SPELLINGS = (*SPECIAL, *MARKERS)
# Puts texts next to each other, inside brackets, and through what templates do with texts.
JOINING = """{% for m in messages %}{{ m.content }}{% endfor %}|
{% for m in messages %}{{ m.content | trim }}{% endfor %}|
{% for m in messages %}<{{ m.content }}><|{{ m.content }}|></{{ m.content }}>{% endfor %}|
{% for m in messages %}{{ m.content | lower }}{{ m.content.strip().split(' ')[-1] }}{% endfor %}|
{{ tools | tojson }}{% for t in tools or [] %}{{ t.function.name }}{% for k, v in
t.function.parameters.items() %}{{ k }}{{ v }}{% endfor %}{% endfor %}"""


@pytest.fixture(scope="module")
def joining(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("joining")
    for name in ("tokenizer.json", "config.json"):
        (folder / name).write_text((model_dir / name).read_text("utf-8"), "utf-8")
    (folder / "chat_template.jinja").write_text(JOINING, "utf-8")
    return Tokenizer.load(folder)


def message(content: str) -> Mapping[str, Any]:
    return {"role": "user", "content": content}


def tool(name: str, key: str, value: str) -> Mapping[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {key: value}}}


def control_ids(tokenizer: Tokenizer) -> set[int]:
    return {tokenizer.encode(text, allow_special=True)[0] for text in SPELLINGS}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelling_cut_anywhere_stays_text(joining: Tokenizer, spelling: str) -> None:
    control = control_ids(joining)
    inner = spelling.strip("<|/>")
    for written in (spelling, spelling.upper(), inner, inner.upper()):
        for first in range(len(written) + 1):
            for second in range(first, len(written) + 1):
                parts = (written[:first], written[first:second], written[second:])
                ids = joining.apply_chat_template(
                    [message(part) for part in parts if part], [tool(*parts)]
                )
                assert control.isdisjoint(ids), (parts, joining.decode(ids))


PIECES = st.sampled_from(
    ["<", "|", ">", "/", "think", "im_end", "<|", "|>", " ", "\n", "k>", "x", *SPELLINGS]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(PIECES, max_size=5).map("".join), min_size=1, max_size=4))
def test_texts_of_pieces_stay_text_and_come_back(joining: Tokenizer, contents: list[str]) -> None:
    ids = joining.apply_chat_template([message(text) for text in contents], [])
    assert control_ids(joining).isdisjoint(ids)
    # nothing is lost or added
    assert joining.decode(ids).startswith("".join(contents))
    shield = Shield(SPELLINGS)
    assert [unshield(text) for text in shield.cover(contents)] == contents
    joined = "".join(shield.cover(contents))
    assert not any(spelling in joined for spelling in SPELLINGS)
