"""Every way in gives the same answer; the final flag comes once, on the last response."""

import json
from typing import Any

import pytest
import tritonclient.grpc as grpcclient

from blockdiff.embedded import TritonServer
from blockdiff.serving.fields import OUTPUTS

from .calls import HttpStream, generate, infer, joined, script, stream_all

pytestmark = pytest.mark.server

CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "Genève"}}\n</tool_call>'
TOOLS = json.dumps([{"type": "function", "function": {"name": "get_time", "parameters": {}}}])


def chat(text: str, **behaviour: Any) -> str:
    return json.dumps([{"role": "user", "content": script(text, **behaviour)}])


CASES = {
    "plain": {"text_input": script("hello world, sort the words")},
    "characters across blocks": {"text_input": script("copy 你好 👋🏽 world 👩‍👩‍👧", block=1)},
    "stop string across blocks": {
        "text_input": script("one two STOP three", block=3),
        "stop_words": ["nothing", "STOP"],
    },
    "length": {"text_input": script("0123456789", block=4), "max_tokens": 7},
    "echo": {"text_input": script("hello"), "exclude_input_in_output": False},
    "ignore eos": {"text_input": script("hello"), "ignore_eos": True},
    "thinking": {
        "messages": chat("the carries\n</think>\n\n825", block=2),
        "enable_thinking": True,
    },
    "tool call": {"messages": chat(f"<think>\nhm\n</think>\n\n{CALL}", block=3), "tools": TOOLS},
    "broken tool call": {"messages": chat("<tool_call>{]</tool_call> ?"), "tools": TOOLS},
    "calls and text": {
        "messages": chat(f"one {CALL}\n{CALL} two {CALL.replace('time', 'tide')}", block=5),
        "tools": TOOLS,
        "tool_choice": "auto",
    },
    "call cut by the limit": {"messages": chat(CALL, block=4), "tools": TOOLS, "max_tokens": 20},
    "no calls wanted": {"messages": chat(CALL), "tools": TOOLS, "tool_choice": "none"},
    "text is one block": {"text_input": script("hi", block=64)},
}


@pytest.mark.parametrize("name", CASES)
def test_all_ways_in_agree(wide: TritonServer, name: str) -> None:
    values = CASES[name]
    responses = stream_all(wide, {**values, "stream": True})
    assert [r.error for r in responses] == [None] * len(responses)
    expected = joined([r.values for r in responses])
    assert [r.values["block_index"] for r in responses] == list(range(len(responses)))
    assert [r.values["is_final"] for r in responses] == [False] * (len(responses) - 1) + [True]
    finals = [bool(r.parameters.get("triton_final_response")) for r in responses]
    assert finals == [False] * (len(responses) - 1) + [True]

    (once,) = stream_all(wide, {**values, "stream": False})
    assert joined([once.values]) == expected
    assert joined(list(HttpStream(wide, values).events())) == expected
    for model in ("ensemble", "unary"):
        status, answer = generate(wide, values, model)
        assert (status, joined([answer])) == (200, expected)
    status, answer = infer(wide, values)
    assert (status, joined([answer])) == (200, expected)


def test_expected_texts(wide: TritonServer) -> None:
    def run(name: str) -> Any:
        return joined([r.values for r in stream_all(wide, {**CASES[name], "stream": True})])

    assert run("characters across blocks").text == "copy 你好 👋🏽 world 👩‍👩‍👧"
    stopped = run("stop string across blocks")
    assert (stopped.text, stopped.finish_reason) == ("one two ", "stop")
    cut = run("length")
    assert (cut.num_output_tokens, cut.finish_reason) == (7, "length")
    thought = run("thinking")
    assert (thought.reasoning, thought.text) == ("the carries", "825")
    called = run("tool call")
    assert (called.reasoning, called.text, called.finish_reason) == ("hm", "", "tool_calls")
    assert called.calls[0]["function"] == {"name": "get_time", "arguments": '{"city": "Genève"}'}
    broken = run("broken tool call")
    assert (broken.text, broken.finish_reason) == ("<tool_call>{]</tool_call> ?", "stop")
    assert broken.has_malformed_call and not called.has_malformed_call
    several = run("calls and text")
    assert [call["index"] for call in several.calls] == [0, 1]
    # a function that was not offered is none
    assert several.text == f"one  two {CALL.replace('time', 'tide')}"
    assert (several.has_malformed_call, several.finish_reason) == (True, "tool_calls")
    cut = run("call cut by the limit")
    assert cut.calls == [] and cut.text and CALL.startswith(cut.text)
    assert (cut.has_malformed_call, cut.finish_reason) == (True, "length")
    unwanted = run("no calls wanted")
    assert (unwanted.text, unwanted.calls, unwanted.finish_reason) == (CALL, [], "stop")
    assert not unwanted.has_malformed_call
    assert run("echo").text.endswith("}hello")


def test_outputs_follow_the_table_and_the_wishes(wide: TritonServer) -> None:
    values = {"text_input": script("hello world"), "return_log_probs": True}
    (answer,) = stream_all(wide, values)
    always = {output.name for output in OUTPUTS} - {"top_log_probs", "step_map"}
    assert set(answer.values) == always
    assert len(answer.values["output_log_probs"]) == answer.values["num_output_tokens"]
    assert answer.values["stop_reason"] == "2"
    wishes = {"return_num_input_tokens": False, "return_num_output_tokens": False}
    (answer,) = stream_all(wide, {"text_input": script("hello"), **wishes})
    gone = {"num_input_tokens", "num_output_tokens", "num_reasoning_tokens", "output_log_probs"}
    assert set(answer.values) == always - gone


@pytest.mark.parametrize(
    "given",
    [
        {
            "sampling_parameters": json.dumps(
                {"max_tokens": 3, "min_length": "1", "seed": 2**64 - 1}
            )
        },
        {"max_tokens": 3, "min_length": 1, "sampling_parameters": json.dumps({"max_tokens": 9})},
        {"max_tokens": 3, "random_seed": 2**64 - 1, "temperature": 0.5, "top_k": 5, "top_p": 0.5},
        {"max_tokens": 3, "quality": "fast", "repetition_penalty": 1.0, "bad_words": [""]},
    ],
)
def test_fields_by_other_spellings(wide: TritonServer, given: dict[str, Any]) -> None:
    status, answer = generate(wide, {"text_input": script("hello world sort"), **given})
    assert status == 200, answer
    assert (answer["num_output_tokens"], answer["finish_reason"]) == (3, "length")


def test_request_parameters_count_as_fields(wide: TritonServer) -> None:
    parameters = {"max_tokens": 3, "trace_id": "x", "temperature": "0"}
    (answer,) = stream_all(wide, {"text_input": script("hello world")}, parameters=parameters)
    assert answer.values["num_output_tokens"] == 3


def test_a_subset_of_outputs_can_be_asked_for(wide: TritonServer) -> None:
    values = {"text_input": script("hello world"), "stream": True}
    wanted = [grpcclient.InferRequestedOutput("text_output")]
    responses = stream_all(wide, values, outputs=wanted)
    assert {name for r in responses for name in r.values} == {"text_output"}
    assert "".join(r.values["text_output"] for r in responses) == "hello world"
