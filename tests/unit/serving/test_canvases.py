"""Canvases on their way through the served models: order, bounds, public form."""

import json
import threading
import time
from typing import Any

import pytest

from blockdiff.core import BlockResult, Canvas, PlaceState
from blockdiff.serving import outgoing
from blockdiff.serving.canvas import to_public, to_wire
from blockdiff.serving.dispatcher import ResponseDispatcher
from blockdiff.serving.outgoing import OutgoingStream
from blockdiff.serving.spec import RequestSpec
from blockdiff.text import Tokenizer
from blockdiff.text.pieces import PieceTexts

from . import fakes

MASKED, OPEN, SETTLED = PlaceState


def canvas_result(block: int, step: int, tokens: tuple[int, ...] = (5, 6)) -> BlockResult:
    canvas = Canvas(step, 2 * block, tokens, (-0.5,) * len(tokens), (SETTLED,) * len(tokens))
    return BlockResult(7, block, (), (), 0, 3, canvas=canvas, is_partial=True)


def block_result(block: int, is_final: bool = False) -> BlockResult:
    return BlockResult(7, block, (5, 6), (-0.5, -0.5), 4, 3, is_final=is_final)


class SlowSender(fakes.Sender):
    def __init__(self) -> None:
        super().__init__()
        self.may_send = threading.Event()

    def send(self, response: fakes.InferenceResponse, flags: int = 0) -> None:
        self.may_send.wait(10)
        super().send(response, flags)


def described(sender: fakes.Sender) -> list[tuple[int, int | None]]:
    """Block and step of what was sent; None: the block itself."""
    found = []
    for response, _ in sender.sent:
        values = response.values()
        text = values["canvas_ids"][0].decode()
        found.append((values["block_index"][0], json.loads(text)["step"] if text else None))
    return found


def test_only_the_last_of_waiting_canvases_is_sent(pb_utils: Any) -> None:
    sender = SlowSender()
    dispatcher = ResponseDispatcher(pb_utils, lambda uid: None)
    dispatcher.start()
    spec = RequestSpec(max_tokens=8, stream=True, stream_denoise=True)
    dispatcher.open(OutgoingStream(pb_utils, 7, sender, spec))
    dispatcher.post(canvas_result(0, 0))
    time.sleep(0.1)  # it is being sent
    for step in range(1, 1000):
        dispatcher.post(canvas_result(0, step))
    dispatcher.post(block_result(0))
    for step in range(1000):
        dispatcher.post(canvas_result(1, step))
    # the first block's canvases are old news; nothing of the second overtakes it
    assert dispatcher._queue.qsize() <= 3
    sender.may_send.set()
    dispatcher.post(block_result(1, is_final=True))
    dispatcher.close()
    assert [entry for entry in described(sender) if entry != (1, 999)] == [
        (0, 0),
        (0, None),
        (1, None),
    ]
    assert sender.misuse == [] and not dispatcher._canvases


def test_canvases_of_a_request_are_bounded(pb_utils: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outgoing, "MAX_CANVAS_CHARACTERS", 300)
    sender = fakes.Sender()
    spec = RequestSpec(max_tokens=8, stream=True, stream_denoise=True)
    stream = OutgoingStream(pb_utils, 7, sender, spec)
    size = len(to_wire(canvas_result(0, 0)))
    for step in range(10):
        stream.send(canvas_result(0, step))
    stream.send(block_result(0, is_final=True))
    # the one that crosses the limit is the last
    assert len(sender.sent) == 300 // size + 1 + 1
    assert [bool(r.values()["request_context"][0]) for r, _ in sender.sent].count(True) == 1


def test_a_failure_after_a_canvas_keeps_its_order(pb_utils: Any) -> None:
    sender = fakes.Sender()
    stream = OutgoingStream(pb_utils, 7, sender, RequestSpec(max_tokens=8, stream=True))
    stream.send(canvas_result(3, 0))
    stream.fail(ValueError("x"))
    (_, (last, _)) = sender.sent
    # as a tensor, since an error of the step would overtake the canvas
    assert not last.has_error() and b"INTERNAL" in last.values()["error"][0]
    assert last.values()["block_index"] == [3]


def test_the_public_form(tokenizer: Tokenizer) -> None:
    first, *rest = tokenizer.encode("👋")
    hello = tokenizer.encode(" h")[0]
    tokens = (hello, first, *rest, hello, -1)
    states = (SETTLED, *(OPEN,) * (1 + len(rest)), MASKED, MASKED)
    log_probs = (0.0, *(-0.5,) * (1 + len(rest)), -2.0, 0.0)
    result = BlockResult(7, 4, (), (), 0, 3, canvas=Canvas(2, 64, tokens, log_probs, states))
    shown = json.loads(to_public(to_wire(result), PieceTexts(tokenizer)))
    places = shown.pop("tokens")
    assert shown == {"block": 4, "step": 2, "first_token": 64, "is_finished": True}
    text = tokenizer.decode([hello])
    assert places[0] == {"text": text, "state": "settled", "confidence": 1.0}
    assert places[1] == {"text": "👋", "state": "open", "confidence": 0.6065}
    assert [place["text"] for place in places[2 : 2 + len(rest)]] == [""] * len(rest)
    guess = {"text": None, "state": "masked", "confidence": 0.1353, "guess": text}
    assert places[-2:] == [guess, {"text": None, "state": "masked"}]
    assert to_public("", PieceTexts(tokenizer)) == ""
