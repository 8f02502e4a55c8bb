"""`blockdiff-client generate`: one prompt in, one answer out.

Knows how the prompt may be given and the answer be written. Knows nothing of conversations.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from ..sync import Client
from ..types import Generation
from .screen import Screen


def read_input(
    prompt: str | None, messages: str | None, *, as_chat: bool = False
) -> dict[str, Any]:
    """Keyword ``prompt`` or ``messages`` from the command line, a file (``@FILE``) or stdin.

    ``as_chat`` turns the prompt into the one message of a user.
    """
    if prompt is not None and messages is not None:
        raise InvalidArgument("give either a prompt or --messages, not both")
    if messages is not None and as_chat:
        raise InvalidArgument("--chat goes with a prompt; --messages are a chat already")
    if messages is not None:
        return {"messages": _text_or_file("--messages", messages)}
    if prompt == "-" or (prompt is None and not sys.stdin.isatty()):
        text = _decode(sys.stdin.buffer.read(), "stdin").removesuffix("\n")
    elif prompt is None:
        raise InvalidArgument("give a prompt as argument, on stdin, or as --messages")
    else:
        text = _decode(prompt.encode("utf-8", "surrogateescape"), "prompt")
    return {"messages": [{"role": "user", "content": text}]} if as_chat else {"prompt": text}


def _text_or_file(name: str, value: str) -> str:
    if not value.startswith("@"):
        return value
    try:
        return _decode(Path(value[1:]).read_bytes(), name)
    except OSError as error:
        raise InvalidArgument(f"{name}: cannot read {value[1:]!r} ({error.strerror})") from None


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{name}: byte {error.start} is not valid UTF-8") from None


def generate(
    client: Client, screen: Screen, request: dict[str, Any], *, as_json: bool = False
) -> None:
    """Run one generation; blocks are written as they arrive unless JSON is wanted."""
    with client.stream(**request) as stream:
        if not as_json:
            screen.wait()
        for event in stream:
            if not as_json:
                screen.block(event)
        if as_json:
            screen.line(json.dumps(to_json(stream.generation), ensure_ascii=False))
        else:
            screen.footnote(stream.generation)


def to_json(generation: Generation) -> dict[str, Any]:
    """The JSON object that ``--format json`` prints."""
    fields = asdict(generation)
    fields["tokens_per_forward"] = generation.tokens_per_forward
    fields["tokens_per_second"] = generation.tokens_per_second
    return fields
