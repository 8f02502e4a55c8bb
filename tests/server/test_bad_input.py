"""Every bad input gets one clear line with the proper code, over every way in, and hurts nobody."""

import json
import struct
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from blockdiff.embedded import TritonServer

from .calls import Stream, generate, inputs, post, script, stream_all, wait_until
from .test_order_and_cancel import is_idle

pytestmark = pytest.mark.server

MARKERS = "<|im_start|><|im_end|><|endoftext|><|mask|><think></think><tool_call></tool_call>"
OK = script("fine")
USER = {"role": "user", "content": OK}

# name -> (fields, code, start of the line, what else it must say)
BAD: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "empty prompt": ({"text_input": ""}, "INVALID_ARGUMENT", "text_input: got an empty", "token"),
    "no prompt": ({"max_tokens": 4}, "INVALID_ARGUMENT", "text_input: got nothing", "one of"),
    "two prompts": (
        {"text_input": OK, "messages": json.dumps([USER])},
        "INVALID_ARGUMENT",
        "messages: got",
        "no text_input beside it",
    ),
    "prompt too long": ({"text_input": "好x" * 900}, "INVALID_ARGUMENT", "text_input: got", "1023"),
    "prompt plus answer too long": (
        {"text_input": "a1" * 500, "max_tokens": 100},
        "INVALID_ARGUMENT",
        "max_tokens: got 100",
        "allowed 1 to 24",
    ),
    "max_tokens 0": (
        {"text_input": OK, "max_tokens": 0},
        "INVALID_ARGUMENT",
        "max_tokens: got 0",
        "1 to 4096",
    ),
    "max_tokens -5": (
        {"text_input": OK, "max_tokens": -5},
        "INVALID_ARGUMENT",
        "max_tokens: got -5",
        "1 to 4096",
    ),
    "min above max": (
        {"text_input": OK, "max_tokens": 3, "min_tokens": 4},
        "INVALID_ARGUMENT",
        "min_tokens: got 4",
        "max_tokens (3)",
    ),
    "block length": (
        {"text_input": OK, "block_length": 33},
        "INVALID_ARGUMENT",
        "block_length: 33",
        "1 to 32",
    ),
    "algorithm": (
        {"text_input": OK, "algorithm": "magic"},
        "INVALID_ARGUMENT",
        'algorithm: got "magic"',
        "low_confidence",
    ),
    "quality": (
        {"text_input": OK, "quality": "best"},
        "INVALID_ARGUMENT",
        'quality: got "best"',
        "fast or balanced or high",
    ),
    "quality and threshold": (
        {"text_input": OK, "quality": "fast", "threshold": 0.5},
        "INVALID_ARGUMENT",
        'quality: got "fast"',
        "threshold",
    ),
    "temperature": (
        {"text_input": OK, "temperature": -1.0},
        "INVALID_ARGUMENT",
        "temperature: got -1",
        "0 to 100",
    ),
    "top_p 0": ({"text_input": OK, "top_p": 0.0}, "INVALID_ARGUMENT", "top_p: got 0", "up to 1"),
    "messages no JSON": (
        {"messages": "hello"},
        "INVALID_ARGUMENT",
        'messages: got "hello"',
        "allowed JSON",
    ),
    "messages no list": (
        {"messages": '{"role": "user"}'},
        "INVALID_ARGUMENT",
        "messages: got",
        "list",
    ),
    "no role": (
        {"messages": json.dumps([USER, {"content": "x"}])},
        "INVALID_ARGUMENT",
        "messages[1].role: got",
        "user",
    ),
    "no content": (
        {"messages": json.dumps([{"role": "user"}])},
        "INVALID_ARGUMENT",
        "messages[0].content: got",
        "string",
    ),
    "tools with text": (
        {"text_input": OK, "tools": "[{}]"},
        "INVALID_ARGUMENT",
        "tools: got",
        "messages",
    ),
    "choice without tools": (
        {"messages": json.dumps([USER]), "tool_choice": "required"},
        "INVALID_ARGUMENT",
        'tool_choice: got "required"',
        "none without tools",
    ),
    "broken tool": (
        {"messages": json.dumps([USER]), "tools": "[{}]"},
        "INVALID_ARGUMENT",
        "tools[0]: got",
        "function",
    ),
    "image": (
        {"messages": json.dumps([{"role": "user", "content": [{"type": "image_url"}]}])},
        "UNIMPLEMENTED",
        "messages[0].content[0]: got",
        "text",
    ),
    "penalty": (
        {"text_input": OK, "repetition_penalty": 0.0},
        "INVALID_ARGUMENT",
        "repetition_penalty: got 0",
        "more than 0",
    ),
    "guided": (
        {"text_input": OK, "guided_decoding_guide_type": "regex", "guided_decoding_guide": "(a"},
        "INVALID_ARGUMENT",
        "guided_decoding_guide: not usable",
        "unclosed group",
    ),
    "bad words": (
        {"text_input": OK, "bad_words": ["x" * 257]},
        "INVALID_ARGUMENT",
        "bad_words: got",
        "up to 256 characters each",
    ),
    "unknown sampling parameter": (
        {"text_input": OK, "sampling_parameters": '{"max_token": 3}'},
        "INVALID_ARGUMENT",
        'sampling_parameters."max_token"',
        "did you mean max_tokens",
    ),
    "sampling parameters NaN": (
        {"text_input": OK, "sampling_parameters": '{"temperature": NaN}'},
        "INVALID_ARGUMENT",
        "sampling_parameters: got",
        "NaN",
    ),
    "too many stop words": (
        {"text_input": OK, "stop_words": [str(n) for n in range(17)]},
        "INVALID_ARGUMENT",
        "stop_words: got",
        "16",
    ),
    "alias twice": (
        {"text_input": OK, "seed": 1, "random_seed": 2},
        "INVALID_ARGUMENT",
        "random_seed: got 2",
        "another seed",
    ),
}


@pytest.fixture(scope="module")
def bystander(wide: TritonServer) -> Iterator[None]:
    """A request that streams while all the bad ones come in; it must end well."""
    text = "one two three " * 15
    with Stream(wide) as stream:
        values = {"text_input": script(text, block=2, delay=0.05), "stream": True}
        stream.send({**values, "max_tokens": 300})
        yield
        (responses,) = stream.collect().values()
    assert all(r.error is None for r in responses)
    assert "".join(r.values["text_output"] for r in responses) == text
    wait_until(lambda: is_idle(wide, 64), 10, "all slots free")


def check_line(text: str, start: str, says: str) -> None:
    line = text.removeprefix("in ensemble 'ensemble', ")
    assert line.startswith(start), text
    assert says in line, text
    assert "\n" not in line and "Traceback" not in line and len(line) < 1000, text


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("name", BAD)
def test_one_line_everywhere(wide: TritonServer, name: str) -> None:
    values, code, start, says = BAD[name]
    for is_streamed in (True, False):
        (response,) = stream_all(wide, {**values, "stream": is_streamed})
        assert response.error is not None
        check_line(response.error.message(), start, says)
    status, answer = generate(wide, values)
    assert status == 400
    check_line(answer["error"], start, says)
    client = grpcclient.InferenceServerClient(wide.grpc_url)
    with pytest.raises(InferenceServerException) as caught:
        client.infer("unary", inputs(values))
    client.close()
    assert caught.value.status() == f"StatusCode.{code}"
    check_line(caught.value.message(), start, says)


@pytest.mark.usefixtures("bystander")
def test_temperature_nan(wide: TritonServer) -> None:
    (response,) = stream_all(wide, {"text_input": OK, "temperature": float("nan")})
    check_line(response.error.message(), "temperature: got nan", "0 to 100")


@pytest.mark.usefixtures("bystander")
def test_invalid_utf8(wide: TritonServer) -> None:
    (response,) = stream_all(wide, {"text_input": b"ab\xffcd"})
    check_line(response.error.message(), "text_input: got byte 0xff at position 2", "UTF-8")
    (response,) = stream_all(wide, {"text_input": OK, "stop_words": [b"\xc3"]})
    check_line(response.error.message(), "stop_words: got byte 0xc3 at position 0", "UTF-8")
    status, body = post(wide, "/v2/models/ensemble/generate", b'{"text_input": "\xff"}')
    assert status == 400
    check_line(json.loads(body)["error"], "", "")


@pytest.mark.usefixtures("bystander")
def test_ten_megabytes(wide: TritonServer) -> None:
    big = "a" * 10_000_000
    (response,) = stream_all(wide, {"text_input": big})
    check_line(response.error.message(), "text_input: got 10000000 bytes", "4194304")
    status, answer = generate(wide, {"messages": big})
    assert status == 400
    check_line(answer["error"], "messages: got 10000000 bytes", "4194304")


@pytest.mark.usefixtures("bystander")
def test_every_special_token_as_text(wide: TritonServer) -> None:
    """Spellings of control tokens are plain text in prompts; nothing is refused."""
    for values in (
        {"text_input": script("ok") + MARKERS},
        {"messages": json.dumps([{"role": "user", "content": MARKERS + script("ok")}])},
    ):
        (response,) = stream_all(wide, values)
        assert response.values["text_output"] == "ok"
        # More tokens than markers: each is spelled out.
        assert response.values["num_input_tokens"] > 8 * 3


@pytest.mark.usefixtures("bystander")
def test_unknown_parameters(wide: TritonServer) -> None:
    status, answer = generate(wide, {"text_input": OK, "max_token": 5})
    assert status == 400
    assert "did you mean max_tokens" in answer["error"]
    status, answer = generate(wide, {"text_input": OK, "colour": "blue"})
    assert status == 400
    assert 'parameter "colour": unknown, allowed ' in answer["error"]
    status, answer = generate(wide, {"text_input": OK, "beam_width": 5})
    assert (status, "not supported" in answer["error"]) == (400, True)


@pytest.mark.usefixtures("bystander")
def test_wrong_shapes_and_direct_calls(wide: TritonServer) -> None:
    two = grpcclient.InferInput("text_input", [1, 2], "BYTES")
    two.set_data_from_numpy(np.array([[b"a", b"b"]], dtype=np.object_))
    with Stream(wide) as stream:
        stream.send_raw([two], "ensemble")
        assert "shape" in str(stream.next().error)
    ids = grpcclient.InferInput("input_ids", [1, 1], "INT32")
    ids.set_data_from_numpy(np.array([[1]], dtype=np.int32))
    for raw in (b"{", b'{"max_tokens": 1, "extra": 2}', struct.pack("<I", 7)):
        spec = grpcclient.InferInput("request_spec", [1, 1], "BYTES")
        spec.set_data_from_numpy(np.array([[raw]], dtype=np.object_))
        with Stream(wide) as stream:
            stream.send_raw([ids, spec], "block_diffusion")
            check_line(stream.next().error.message(), "request_spec: ", "")


def test_ten_megabytes_as_curl_sends_them(
    make_server: Callable[..., TritonServer], make_repository: Callable[..., Path]
) -> None:
    """curl -d names the body a form; Triton then parses it on the stack, of the body's own size."""
    with make_server(make_repository()) as server:
        server.start()
        body = json.dumps({"text_input": "a" * 10_000_000}).encode()
        request = urllib.request.Request(f"{server.http_url}/v2/models/ensemble/generate", body)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request)
        assert caught.value.code == 400
        check_line(json.load(caught.value)["error"], "text_input: got 10000000 bytes", "4194304")
        assert generate(server, {"text_input": OK})[0] == 200
        server.stop(graceful_seconds=0)
