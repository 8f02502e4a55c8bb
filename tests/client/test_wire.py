"""Requests and responses as bytes: types, ranges, shapes, and error texts taken apart."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest

from blockdiff_client import InvalidArgument, Options, ServerError, ToolCall, Unavailable
from blockdiff_client.errors import from_status, from_text
from blockdiff_client.wire import INPUT_TYPES, build_request, input_values, parse_tool_calls

from .fake_server import read_inputs


def sent(**options: Any) -> dict[str, Any]:
    prompt = None if "messages" in options else "hi"
    values = input_values(prompt, options.pop("messages", None), options)
    return read_inputs(build_request("ensemble", "r1", values))


def test_every_option_has_a_tensor() -> None:
    added = {"text_input", "messages", "stream", "return_num_input_tokens"}
    added.add("return_num_output_tokens")
    assert set(INPUT_TYPES) == set(Options.__annotations__) | added


def test_values_arrive_as_given() -> None:
    got = sent(
        max_tokens=5,
        seed=2**64 - 1,
        temperature=0.5,
        ignore_eos=True,
        stop_words=["a", "bé"],
        bad_words="x",
        tools=[{"name": "f"}],
        tool_choice={"type": "function", "function": {"name": "f"}},
        top_p=None,
    )
    assert got == {
        "text_input": "hi",
        "stream": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
        "max_tokens": 5,
        "seed": 2**64 - 1,
        "temperature": 0.5,
        "ignore_eos": True,
        "stop_words": ["a", "bé"],
        "bad_words": ["x"],
        "tools": '[{"name": "f"}]',
        "tool_choice": '{"type": "function", "function": {"name": "f"}}',
    }


def test_nan_is_left_to_the_server() -> None:
    assert math.isnan(sent(temperature=float("nan"))["temperature"])


def test_an_empty_stop_list_is_an_empty_tensor() -> None:
    assert sent(stop_words=[])["stop_words"] == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 2**31),
        ("max_tokens", True),
        ("max_tokens", "5"),
        ("seed", -1),
        ("temperature", "hot"),
        ("temperature", 1e300),
        ("ignore_eos", 1),
        ("algorithm", 3),
        ("stop_words", [1]),
        ("algorithm", "\ud800"),
        ("tools", [object()]),
        ("sampling_parameters", {"temperature": float("nan")}),
        ("no_such_field", 1),
    ],
)
def test_a_value_that_does_not_fit_names_the_field(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name}:"):
        sent(**{name: value})


@pytest.mark.parametrize(("prompt", "messages"), [(None, None), ("a", [{"role": "user"}])])
def test_exactly_one_of_prompt_and_messages(prompt: Any, messages: Any) -> None:
    with pytest.raises(InvalidArgument, match="exactly one"):
        input_values(prompt, messages, {})


@pytest.mark.parametrize(
    ("name", "wanted"), [("max_tokns", "max_tokens"), ("return_logprobs", "return_log_probs")]
)
def test_a_misspelt_option_gets_a_hint(name: str, wanted: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{name}: no such option, did you mean {wanted}"):
        input_values("a", None, {name: 1})


def test_text_is_length_prefixed_utf8() -> None:
    request = build_request("m", "id", {"text_input": "é"})
    assert request.raw_input_contents[0] == struct.pack("<I", 2) + "é".encode()
    assert request.parameters["triton_enable_empty_final_response"].bool_param


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ()),
        ('[{"name": "f", "arguments": {"a": 1}}]', (ToolCall("f", '{"a": 1}'),)),
        (
            '{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}',
            (ToolCall("f", "{}", "c1"),),
        ),
    ],
)
def test_tool_calls_in_both_spellings(text: str, expected: tuple[ToolCall, ...]) -> None:
    assert parse_tool_calls(text) == expected


@pytest.mark.parametrize("text", ["{", "[1]", '[{"arguments": {}}]'])
def test_broken_tool_calls_are_the_servers_fault(text: str) -> None:
    with pytest.raises(ServerError, match="tool_calls"):
        parse_tool_calls(text)


def test_prefixes_become_attributes() -> None:
    error = from_status(
        "UNAVAILABLE",
        "[request id: r7] in ensemble 'ensemble', queue is full; retry after 250 ms",
    )
    assert isinstance(error, Unavailable)
    assert str(error) == "queue is full; retry after 250 ms"
    assert (error.ensemble, error.request_id, error.retry_after) == ("ensemble", "r7", 0.25)


def test_prefixes_in_the_other_order() -> None:
    error = from_text("in ensemble 'e', [request id: <id_unknown>] Exceeds maximum queue size")
    assert (error.message, error.ensemble, error.request_id) == (
        "Exceeds maximum queue size",
        "e",
        None,
    )


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        ("INVALID_ARGUMENT", "top_k: -1 is not allowed", "InvalidArgument"),
        ("NOT_FOUND", "Request for unknown model", "NotFound"),
        ("UNIMPLEMENTED", "bad_words", "Unsupported"),
        ("UNAVAILABLE", "Request timeout expired", "DeadlineExceeded"),
        ("UNAVAILABLE", "", "Unavailable"),
        ("CANCELLED", "", "Cancelled"),
        ("DEADLINE_EXCEEDED", "", "DeadlineExceeded"),
        ("INTERNAL", "boom", "ServerError"),
        ("RESOURCE_EXHAUSTED", "Sent message larger than max", "InvalidArgument"),
        (None, "Exceeds maximum queue size", "Unavailable"),
        (None, "Request for unknown model: 'x' is not found", "NotFound"),
        (None, "unexpected inference input 'q' for model 'ensemble'", "InvalidArgument"),
        (None, "boom", "ServerError"),
        (None, 'stop_words: got "timeout expired", allowed a list', "InvalidArgument"),
        (None, "messages[0].content: got 3, allowed text", "InvalidArgument"),
        (None, "bad_words: not supported; leave it out", "Unsupported"),
        (None, "preprocessing: internal error (KeyError); the server log ...", "ServerError"),
        (None, "the request was cancelled while it waited", "Cancelled"),
        (None, "the deadline passed while the request waited; retry after 1 s", "DeadlineExceeded"),
        (None, "the engine is shutting down; retry on another instance", "Unavailable"),
        (None, "the engine has died; retry after about 1 s", "Unavailable"),
        (None, "expected 4 inputs but got 5 inputs for model 'ensemble'", "InvalidArgument"),
    ],
)
def test_kinds(status: str | None, text: str, kind: str) -> None:
    error = from_text(text) if status is None else from_status(status, text)
    assert type(error).__name__ == kind
    assert str(error)


@pytest.mark.parametrize(
    ("details", "place"),
    [
        (
            "UNKNOWN: ipv6:%5B::1%5D:8001: Failed to connect to remote host: Connection refused",
            "[::1]:8001 (Connection refused)",
        ),
        (
            "UNAVAILABLE: ipv4:127.0.0.1:8000: Socket closed",
            "127.0.0.1:8000 (Socket closed)",
        ),
    ],
)
def test_a_failed_connection_says_what_to_look_at(details: str, place: str) -> None:
    text = f"failed to connect to all addresses; last error: {details}"
    error = from_status("UNAVAILABLE", text)
    line = f"cannot connect to {place}: is that a running server's gRPC port?"
    assert (type(error).__name__, str(error)) == ("Unavailable", line)
