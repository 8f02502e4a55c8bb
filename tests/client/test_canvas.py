"""Blocks being denoised, as clients see them: typed, apart from the blocks, shown live."""

from __future__ import annotations

import io
import json
from typing import Any

import grpc
import pytest

from blockdiff_client import CanvasPlace, Client, ServerError, Unavailable
from blockdiff_client.cli.screen import Screen
from blockdiff_client.types import BlockEvent
from blockdiff_client.wire import parse_canvas

from .fake_server import Abort, Block, FakeTriton
from .test_cli import invoke

SETTLED = {"text": "so", "state": "settled", "confidence": 0.9}
GUESSED = {"text": None, "state": "masked", "confidence": 0.4, "guess": "rt"}
UNSEEN = {"text": None, "state": "masked"}


def canvas(*places: dict[str, Any], block: int = 0, step: int = 0, done: bool = False) -> str:
    given = {"block": block, "step": step, "first_token": 4 * block, "is_finished": done}
    return json.dumps({**given, "tokens": list(places)})


SCRIPT = [
    Block("", 0, steps=0, tokens=0, canvas=canvas(SETTLED, GUESSED, UNSEEN)),
    Block("sort\x1b", 0, canvas=canvas(SETTLED, SETTLED, step=1, done=True)),
    Block("", 1, steps=0, tokens=0, canvas=canvas(UNSEEN, block=1)),
    Block("ed", 1, canvas=canvas(SETTLED, block=1, step=1, done=True), final=True, flag=True),
]


def test_canvases_are_typed_and_apart(fake: FakeTriton, client: Client) -> None:
    fake.default = SCRIPT
    with client.stream("x", stream_denoise=True) as stream:
        events = list(stream)
    assert [event.is_partial for event in events] == [True, False, True, False]
    first = events[0].canvas
    assert first is not None and (first.step, first.first_token, first.num_masked) == (0, 0, 2)
    assert first.places[1] == CanvasPlace(None, "masked", 0.4, "rt")
    assert fake.seen[0].inputs["stream_denoise"] is True
    whole = stream.generation
    assert (whole.text, len(whole.blocks), whole.denoise_steps) == ("sort\x1bed", 2, 4)
    assert events[1].canvas is not None and events[1].canvas.is_finished


def test_nothing_is_tried_again_once_a_canvas_has_come(fake: FakeTriton, client: Client) -> None:
    fake.scripts = [[SCRIPT[0], Abort(grpc.StatusCode.UNAVAILABLE, "later")]]
    with pytest.raises(Unavailable):
        client.generate("x", stream_denoise=True)
    assert len(fake.seen) == 1


@pytest.mark.parametrize("text", ["{", "[]", "{}", canvas({"colour": 1})])
def test_what_is_no_canvas(text: str) -> None:
    with pytest.raises(ServerError, match="canvas: the server sent"):
        parse_canvas(text)


def test_watching_a_pipe(fake: FakeTriton) -> None:
    fake.default = SCRIPT
    result = invoke(fake, "generate", "x", "--watch")
    assert (result.exit_code, result.stdout) == (0, "sort\x1bed\n")
    assert result.stderr == "block 0 step 0: sort░\nblock 1 step 0: ░\n"


def test_watching_a_terminal() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    screen = Screen(out, io.StringIO())
    screen.wait()
    escape = canvas({"text": "\x1b[2J", "state": "open", "confidence": 0.5}, GUESSED)
    screen.block(BlockEvent(canvas=parse_canvas(escape)))
    screen.block(BlockEvent("sorted", canvas=parse_canvas(canvas(SETTLED, done=True))))
    screen.line("")
    shown = out.getvalue()
    # the canvas is gone before the text comes, and cannot drive the terminal
    assert "␛[2J" in shown and shown.index("␛[2J") < shown.index("sorted")
    assert "\x1b[2J" not in shown
