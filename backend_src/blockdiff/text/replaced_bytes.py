"""Bytes of tokens whose decoder only replaces letters and spells single bytes as ``<0x0A>``.

Knows the decoder of a tokenizer.json; knows nothing of encoding.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def replaced_bytes(
    decoder: Mapping[str, Any], pieces: Sequence[str], hidden: Collection[int]
) -> list[bytes] | None:
    """What each of ``pieces`` adds to a text, nothing for ``hidden`` ids.

    None for decoders whose pieces depend on what stands next to them.
    """
    steps = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    if not steps:
        return None
    replacements, has_bytes = [], False
    for step in steps:
        kind = step.get("type")
        if kind == "Replace" and isinstance((step.get("pattern") or {}).get("String"), str):
            replacements.append((step["pattern"]["String"], str(step["content"])))
        elif kind == "ByteFallback":
            has_bytes = True
        elif kind != "Fuse":
            return None
    return [
        b"" if token_id in hidden else _bytes_of(piece, replacements, has_bytes)
        for token_id, piece in enumerate(pieces)
    ]


def _bytes_of(piece: str, replacements: Sequence[tuple[str, str]], has_bytes: bool) -> bytes:
    found = _BYTE.fullmatch(piece) if has_bytes else None
    if found is not None:
        return bytes([int(found[1], 16)])
    for old, new in replacements:
        piece = piece.replace(old, new)
    return piece.encode()
