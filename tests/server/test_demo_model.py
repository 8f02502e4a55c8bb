"""The repository as users get it, over the real engine and the demo checkpoint."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from blockdiff.embedded import TritonServer

from .calls import (
    Answer,
    HttpStream,
    Stream,
    generate,
    infer,
    joined,
    metric,
    stream_all,
    wait_until,
)
from .test_order_and_cancel import is_idle

pytestmark = pytest.mark.server

PAGES = ("total", "free", "kept", "used")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"properties": {"city": {"type": "string"}, "unit": {"type": "string"}}},
    },
}


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": json.dumps([{"role": "user", "content": text}]), **fields}


PROMPTS = {
    "sort": ask("sort 52 7 31 88", max_tokens=48),
    "thinking": ask("458+367", enable_thinking=True, max_tokens=64),
    "tool": ask("what is the weather in Paris in celsius", tools=json.dumps([TOOL]), max_tokens=64),
    "required tool": ask(
        "sort 52 7 31", tools=json.dumps([TOOL]), tool_choice="required", max_tokens=64
    ),
    "chinese": ask("三加五等于几", max_tokens=32),
    "emoji": ask("copy 你好 👋🏽 world", max_tokens=48),
    "raw text": {"text_input": "sort 1 2 3", "max_tokens": 40},
    "short blocks": ask("reverse stone", max_tokens=40, block_length=4),
    "fixed steps": ask("upper stone", max_tokens=40, denoise_steps=4),
    "to the limit": ask("sort 9 1", max_tokens=77, ignore_eos=True),
}


def streamed(server: TritonServer, values: dict[str, Any]) -> Answer:
    responses = stream_all(server, {**values, "stream": True})
    assert [r.error for r in responses] == [None] * len(responses)
    assert [r.values["is_final"] for r in responses] == [False] * (len(responses) - 1) + [True]
    return joined([r.values for r in responses])


@pytest.mark.parametrize("name", PROMPTS)
def test_all_ways_in_agree(demo: TritonServer, name: str) -> None:
    values = PROMPTS[name]
    expected = streamed(demo, values)
    assert expected.finish_reason in ("stop", "length", "tool_calls")
    assert joined(list(HttpStream(demo, values).events())) == expected
    status, answer = generate(demo, values)
    assert (status, joined([answer])) == (200, expected)
    status, answer = infer(demo, values)
    assert (status, joined([answer])) == (200, expected)


def test_responses_say_what_threshold_decided_them(demo: TritonServer) -> None:
    given = [{"threshold": 0.5}, {"quality": "balanced"}, {"denoise_steps": 2}]
    answers = [generate(demo, ask("sort 3 1", max_tokens=40, **fields))[1] for fields in given]
    used = [answer["threshold_used"] for answer in answers]
    assert used == pytest.approx([0.5, 0.9, -1.0])


def test_tools_as_chosen(demo: TritonServer) -> None:
    time = {"name": "get_time", "parameters": {"properties": {"city": {"enum": ["Oslo", "Rome"]}}}}
    tools = json.dumps([TOOL, {"type": "function", "function": time}])
    named = json.dumps({"type": "function", "function": {"name": "get_time"}})
    question = "what is the weather in Paris in celsius"

    def chosen(choice: str, max_tokens: int = 64) -> Answer:
        fields = {"tools": tools, "tool_choice": choice, "max_tokens": max_tokens}
        return streamed(demo, ask(question, **fields))

    auto = chosen("auto")
    assert [call["function"]["name"] for call in auto.calls] == ["get_weather"]
    # the model's own choice is the required one, and nothing else changes it
    assert chosen("required").calls[:1] == auto.calls
    other = chosen(named)
    assert [call["function"]["name"] for call in other.calls] == ["get_time"]
    assert (other.text, other.finish_reason) == ("", "tool_calls")
    assert chosen("none").calls == []
    cut = streamed(demo, ask("sort 3 1", tools=tools, tool_choice=named, max_tokens=6))
    assert (cut.calls, cut.finish_reason, cut.has_malformed_call) == ([], "length", True)
    assert cut.text.startswith("<tool_call>")


def test_max_tokens_is_exact(demo: TritonServer) -> None:
    for wanted in (1, 15, 16, 17, 33):
        answer = streamed(demo, ask("sort 3 1", max_tokens=wanted, ignore_eos=True))
        assert (answer.num_output_tokens, answer.finish_reason) == (wanted, "length")


def test_the_same_alone_and_among_others(demo: TritonServer) -> None:
    alone = {name: streamed(demo, values) for name, values in PROMPTS.items()}
    with ThreadPoolExecutor(6) as pool:
        work = [
            (name, pool.submit(streamed, demo, values))
            for _ in range(2)
            for name, values in PROMPTS.items()
        ]
        for name, running in work:
            assert running.result() == alone[name]


def test_a_seed_reproduces(demo: TritonServer) -> None:
    # The trained model is so sure that only a high temperature makes it waver.
    values = ask("reverse stone", temperature=8.0, max_tokens=32, ignore_eos=True)
    first = streamed(demo, {**values, "seed": 7})
    assert streamed(demo, {**values, "seed": 7}) == first
    assert streamed(demo, {**values, "seed": 8}) != first


def test_fields_that_change_the_distribution(demo: TritonServer) -> None:
    def tokens(**fields: Any) -> list[int]:
        values = ask("copy a a a a a a", max_tokens=24, top_logprobs=1, **fields)
        answer = generate(demo, values)[1]
        return [top[0]["id"] for top in json.loads(answer["top_log_probs"])]

    plain = tokens()
    often = max(set(plain), key=plain.count)
    for fields in (
        {"presence_penalty": 2.0, "threshold": 0.5},
        {"frequency_penalty": 2.0},
        {"repetition_penalty": 20.0},
        {"logit_bias": json.dumps({often: -100})},
    ):
        changed = tokens(**fields)
        assert changed.count(often) < plain.count(often), fields
    ramp = {"start": 0, "slope": 1000, "most": 1000}
    assert len(tokens(stop_ramp=json.dumps(ramp))) < len(plain)
    thinking = ask("458+367", enable_thinking=True, max_tokens=64)
    text = "reasoning_output"
    whole = generate(demo, thinking)[1][text]
    short = generate(demo, {**thinking, "think_end_ramp": json.dumps(ramp)})[1][text]
    assert len(whole) > 0 and len(short) < len(whole)
    # drawn from tokens as probable as the best one only
    wild = ask("reverse stone", temperature=8.0, seed=7, max_tokens=32)
    assert (
        generate(demo, {**wild, "min_p": 1.0})[1]["text_output"]
        == (generate(demo, ask("reverse stone", max_tokens=32))[1]["text_output"])
    )


def test_tokens_tell_how_they_came_about(demo: TritonServer) -> None:
    asked = {"return_log_probs": True, "top_logprobs": 3, "return_step_map": True}
    values = ask("sort 52 7 31 88", max_tokens=40, denoise_steps=4, block_length=8, **asked)
    _, whole = generate(demo, values)
    responses = list(HttpStream(demo, values).events())
    top, steps = [], []
    for part in responses:
        top += json.loads(part["top_log_probs"])
        own = part["step_map"]
        steps += own if isinstance(own, list) else [own]
    at_once = json.loads(whole["top_log_probs"])
    assert [[t["id"] for t in own] for own in at_once] == [[t["id"] for t in own] for own in top]
    assert whole["step_map"] == steps
    assert len(top) == len(steps) == whole["num_output_tokens"]
    assert set(steps) == {0, 1, 2, 3}
    for best, value in zip(top, whole["output_log_probs"], strict=True):
        assert best[0]["log_prob"] == pytest.approx(value, abs=1e-5) and len(best) == 3
    text = "".join(best[0]["token"] for best in top)
    assert text.startswith(whole["text_output"])


def test_prompt_must_fit_the_model(demo: TritonServer) -> None:
    (response,) = stream_all(demo, {"text_input": "x" * 20_000})
    assert response.error is not None
    assert "text_input: got" in response.error.message()
    (response,) = stream_all(demo, ask("hi", block_length=10_000))
    assert response.error is not None
    assert "block_length:" in response.error.message()


@pytest.mark.parametrize("leave", ["grpc", "http"])
def test_leaving_frees_the_slot(demo: TritonServer, leave: str) -> None:
    values = ask("sort 3 1", max_tokens=512, ignore_eos=True, denoise_steps=16)
    if leave == "grpc":
        with Stream(demo) as stream:
            stream.send({**values, "stream": True})
            stream.next()
            began = time.monotonic()
            second = stream.next()
            block_seconds = time.monotonic() - began
            assert second.error is None
    else:
        stream_http = HttpStream(demo, values)
        events = stream_http.events()
        next(events)
        began = time.monotonic()
        next(events)
        block_seconds = time.monotonic() - began
        events.close()
    wait_until(lambda: is_idle(demo, 4), 3 * block_seconds + 0.5, "slot free")


def test_metrics_tell_the_phases(demo: TritonServer) -> None:
    def forwards(phase: str) -> float:
        return metric(demo, "blockdiff_forwards_total", phase=phase)

    before = {phase: forwards(phase) for phase in ("prefill", "preview", "commit_fused")}
    tokens = metric(demo, "blockdiff_output_tokens_total")
    values = ask("sort 3 1", max_tokens=48, ignore_eos=True, denoise_steps=2, block_length=16)
    streamed(demo, values)
    wait_until(
        lambda: metric(demo, "blockdiff_output_tokens_total") == tokens + 48, 2, "tokens counted"
    )
    assert forwards("prefill") - before["prefill"] == 1
    assert forwards("preview") - before["preview"] == 6
    # Each block but the last is committed by the next one's first preview.
    assert forwards("commit_fused") - before["commit_fused"] == 2
    assert metric(demo, "blockdiff_forwards_total", phase="commit") == 0
    pages = {name: metric(demo, f"blockdiff_kv_pages_{name}") for name in PAGES}
    assert pages["total"] > 0 and pages["used"] == 0
    assert pages["total"] == pages["free"] + pages["kept"]
    assert metric(demo, "blockdiff_prefix_cache_queried_tokens_total") > 0
    assert metric(demo, "blockdiff_preemptions_total") == 0


def test_metrics_tell_how_experts_are_used(demo: TritonServer) -> None:
    streamed(demo, ask("sort 3 1", max_tokens=48, ignore_eos=True, denoise_steps=8))
    # an engine with nothing to do has published what it counted
    active, imbalance = "blockdiff_experts_active", "blockdiff_expert_imbalance"
    wait_until(lambda: metric(demo, active, layer="7") > 0, 2, "experts of the last layer")
    assert metric(demo, "blockdiff_expert_sampled_rows_total") > 0
    for layer in range(8):
        assert 1 <= metric(demo, imbalance, layer=str(layer)) <= 8
        assert 0 < metric(demo, active, layer=str(layer)) <= 1
