"""What guides of all forms of tool calls share: markers and texts as Lark spells them."""

import json
from collections.abc import Callable

# id of a control token by its spelling; None where the vocabulary has none
IdOf = Callable[[str], int | None]


def marker(text: str, id_of: IdOf) -> str:
    """A marker as the vocabulary has it: one control token, or text."""
    token = id_of(text)
    return literal(text) if token is None else f"<[{token}]>"


def literal(text: str) -> str:
    """``text`` in quotes."""
    return json.dumps(text, ensure_ascii=False)
