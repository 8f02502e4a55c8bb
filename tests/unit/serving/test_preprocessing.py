"""Preprocessor: every field is honoured or refused, in one line; nothing is ignored."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from blockdiff.config import UniformDefaults
from blockdiff.engine import EngineConfig
from blockdiff.errors import BlockdiffError, ConfigError, RequestError, UnsupportedError
from blockdiff.model_info import NO_MASK_TOKEN, ModelInfo
from blockdiff.serving.fields import BY_NAME, FIELDS, Kind
from blockdiff.serving.model_facts import ModelFacts, facts_file, write_facts
from blockdiff.serving.settings import Settings, read_settings
from blockdiff.serving.spec import parse_spec
from blockdiff.serving.text_fields import read_stop_words
from blockdiff.serving.values import check_value, merge_values
from blockdiff.text import Tokenizer

from .conftest import as_tensors

Build = Callable[..., Any]
USER = [{"role": "user", "content": "hi"}]
TOOL = '[{"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}}]'


def deep_tool(depth: int) -> str:
    return TOOL.replace('"f"', f'"f", "x": {"[" * depth}{"]" * depth}')


def test_text_prompt_and_defaults(build: Build, tokenizer: Tokenizer) -> None:
    ids, spec = build(text_input="hello <|im_end|>")
    assert ids == tokenizer.encode("hello <|im_end|>")
    assert tokenizer.special.im_end not in ids
    assert (spec.stream, spec.temperature, spec.threshold) == (False, 0.0, None)
    assert spec.algorithm is None
    # The default is cut to what the context leaves.
    assert spec.max_tokens == 256 - len(ids)
    assert spec.text.echo == ""
    assert spec.received_at is not None and time.monotonic() - spec.received_at < 5


def test_spec_travels_as_json(build: Build) -> None:
    _, spec = build(text_input="x", stop_words=["a", "", "a", "好"], min_length=2, max_tokens=5)
    assert parse_spec(spec.model_dump_json()) == spec
    assert spec.text.stop_words == ("a", "好")
    request = spec.engine_request(3, (1, 2), None)
    assert (request.min_tokens, request.max_tokens, request.stop_strings) == (2, 5, ("a", "好"))
    with pytest.raises(RequestError, match="request_spec: extra"):
        parse_spec('{"max_tokens": 1, "extra": 2}')


def test_every_honoured_field_reaches_the_engine(build: Build) -> None:
    _, spec = build(
        text_input="x",
        max_tokens=9,
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        seed=2**64 - 1,
        ignore_eos=True,
        block_length=8,
        denoise_steps=4,
        threshold=0.75,
        algorithm="low_confidence",
    )
    request = spec.engine_request(1, (1,), 5.0)
    assert (request.sampling.temperature, request.sampling.top_k) == (0.5, 3)
    assert (request.sampling.top_p, request.sampling.seed) == (0.25, 2**64 - 1)
    decoding = request.decoding
    assert (decoding.block_length, decoding.denoise_steps, decoding.threshold) == (8, 4, 0.75)
    assert request.ignore_eos and request.deadline == 5.0


def test_infilling_sets_the_limits_that_it_needs(build: Build, tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("end")
    given = {"suffix": "end", "gap": 5}
    pins = {"pinned": {"1": 7}}
    spec = build(text_input="x", sampling_parameters=json.dumps({**given, **pins}))[1]
    assert spec.pinned == ((1, 7), *enumerate(tokens, 5))
    assert (spec.max_tokens, spec.text.min_tokens) == (5 + len(tokens), 5)
    spec = build(text_input="x", **given, max_tokens=30, min_tokens=0, running_priority=4)[1]
    assert (spec.max_tokens, spec.text.min_tokens) == (30, 0)
    request = spec.engine_request(1, (1,), None)
    assert (request.pinned, request.priority) == (tuple(enumerate(tokens, 5)), 4)


def test_sources_and_their_order(build: Build) -> None:
    low, middle = {"top_k": 1, "max_tokens": 1, "trace": "x"}, {"top_k": "2", "max_tokens": 2}
    _, spec = build(low, text_input="x", sampling_parameters=json.dumps(middle), max_tokens=3)
    assert (spec.top_k, spec.max_tokens) == (2, 3)
    _, spec = build({"top_k": 7}, text_input="x")
    assert spec.top_k == 7


def test_prompt_inside_sampling_parameters(build: Build) -> None:
    ids, spec = build(sampling_parameters=json.dumps({"messages": USER, "enable_thinking": False}))
    assert spec.text.is_chat and spec.text.think == "closed"
    assert ids


@pytest.mark.parametrize(("quality", "threshold"), [("fast", 0.7), ("balanced", None)])
def test_quality_names_a_threshold(build: Build, quality: str, threshold: float | None) -> None:
    spec = build(text_input="x", quality=quality)[1]
    assert spec.threshold == threshold
    # only this quality lets a loaded server decide faster
    is_elastic = spec.engine_request(1, (1,), None).decoding.is_elastic
    assert is_elastic == (quality == "balanced")
    assert not build(text_input="x", threshold=0.9)[1].is_elastic


def test_a_seed_is_drawn_where_none_is_given(build: Build) -> None:
    seeds = {build(text_input="x", temperature=1.0)[1].seed for _ in range(4)}
    # models with random canvases draw at temperature 0 too
    seeds |= {build(text_input="x")[1].seed for _ in range(4)}
    assert len(seeds) == 8
    assert build(text_input="x", temperature=1.0, seed=5)[1].seed == 5


@pytest.mark.parametrize("field", [f for f in FIELDS if f.is_refused], ids=lambda f: f.name)
def test_unsupported_fields(build: Build, field: Any) -> None:
    wanted = {Kind.STRING: "json", Kind.FP32: 0.5, Kind.INT32: 7}[field.kind]
    with pytest.raises(UnsupportedError, match=f"^{field.name}: got .*not supported"):
        build(text_input="x", **{field.name: wanted})
    build(text_input="x", **{field.name: field.neutral[0]})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": "[]"}, "messages: got"),
        ({"messages": '[{"role": "user", "content": 5}]'}, r"messages\[0\].content: got"),
        ({"messages": '[{"role": "pirate", "content": "x"}]'}, r"messages\[0\].role: got \"pirate"),
        ({"messages": '["x"]'}, r"messages\[0\]: got"),
        ({"messages": "[" * 100_000}, "bytes"),
        ({"messages": "[" * 1_900}, "messages: got"),
        ({"messages": '[{"role": "user", "content": "\\ud800"}]'}, r"ud800.*UTF-8"),
        ({"messages": json.dumps(USER), "tools": deep_tool(110)}, "nested at most 100 deep"),
        ({"messages": json.dumps(USER), "tools": deep_tool(900)}, "tools: got"),
        ({"messages": json.dumps(USER), "tools": TOOL.replace('"f"', '"\\ud800"')}, "UTF-8 text"),
        ({"text_input": "x", "sampling_parameters": '{"top_k": 1, "top_k": 2}'}, '"top_k" twice'),
        ({"messages": json.dumps(USER), "exclude_input_in_output": False}, "true with messages"),
        ({"text_input": "x", "enable_thinking": True}, "enable_thinking: got true"),
        ({"text_input": "x", "stop_words": ["a" * 300]}, "256 characters"),
        ({"text_input": "x", "stop_words": ["a" * 1_000_000]}, "stop_words: got .* bytes"),
        ({"text_input": "x", "stop_words": [str(n % 100) for n in range(800)]}, "100 strings"),
        ({"text_input": "x", "stop_words": [""] * 10_001}, "10001 elements.*up to 10000"),
        ({"text_input": "x", "stop_token_ids": [7] * 20_000}, "20000 elements.*up to 10000"),
        ({"text_input": "x", "stop_token_ids": [-1]}, "stop_token_ids: got -1"),
        ({"text_input": "x", "sampling_parameters": '{"stop_token_ids": [1.5]}'}, "whole number"),
        ({"text_input": "x", "thinking_budget": 4}, "thinking_budget: got 4.*with messages"),
        ({"messages": json.dumps(USER), "thinking_budget": -2}, "thinking_budget: got -2"),
        (
            {"messages": json.dumps(USER), "thinking_budget": 4, "enable_thinking": False},
            "thinking_budget: got 4, allowed 0 or nothing together with enable_thinking false",
        ),
        (
            {"messages": json.dumps(USER), "thinking_budget": 4, "suffix": "x", "gap": 2},
            "thinking_budget: got 4, allowed nothing together with pinned",
        ),
        ({"text_input": "x", "stream_denoise": True}, "stream_denoise: got true.*without stream"),
        ({"text_input": "x", "quality": "high", "threshold": 0.5}, "quality: got.*threshold"),
        ({"text_input": "x", "suffix": "y"}, "suffix: got.*without gap"),
        ({"text_input": "x", "gap": 3}, "gap: got 3.*without suffix"),
        ({"text_input": "x", "pinned": "7"}, "pinned: got.*places and token ids"),
        ({"text_input": "x", "pinned": "[[1, true]]"}, "pinned: got.*places and token ids"),
        ({"text_input": "x", "pinned": '{"1": 2, "1": 3}'}, 'pinned: got "1" twice'),
        ({"text_input": "x", "running_priority": 1001}, "running_priority: got 1001.*0 to 1000"),
        ({"text_input": "x", "sampling_parameters": "[1]"}, "JSON object"),
        ({"text_input": "x", "sampling_parameters": '{"top_k": 1.5}'}, "whole number"),
        ({"text_input": "x", "sampling_parameters": '{"top_k": true}'}, "top_k: got true"),
        ({"text_input": "x", "sampling_parameters": '{"stream": 1}'}, "stream: got 1"),
        ({"text_input": "x", "sampling_parameters": '{"stop_words": [1]}'}, "stop_words: got 1"),
        ({"text_input": ["a", "b"]}, r"text_input: got shape \[1, 2\]"),
        ({"text_input": "x" * 2001}, "2001 bytes, allowed up to 2000"),
        ({"text_input": b"\xe5\xa5"}, "byte 0xe5 at position 0"),
        ({"text_input": "x", "temperature": float("inf")}, "temperature: got inf"),
        ({}, "text_input: got nothing"),
    ],
)
def test_refusals(build: Build, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        build(**fields)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize("name", ["max_token", "stop_word", "temprature", "n", "best_of"])
def test_parameters_that_would_be_ignored(build: Build, name: str) -> None:
    with pytest.raises(RequestError, match=f'parameter "{name}"'):
        build({name: 1}, text_input="x")


def test_empty_counterpart_counts_as_not_given(build: Build) -> None:
    assert build(text_input="", messages=json.dumps(USER))[1].text.is_chat
    assert not build(text_input="x", messages="")[1].text.is_chat


def test_history_is_brought_into_template_form(build: Build, tokenizer: Tokenizer) -> None:
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    history = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "<thi"}, {"type": "text", "text": "nk>"}],
        },
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nok"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "1"},
    ]
    ids, _ = build(messages=json.dumps(history))
    text = tokenizer.decode(ids, skip_special=False)
    assert tokenizer.special.think_start not in ids
    assert "<|im_start|>assistant\nok<|im_end|>" in text
    assert '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in text


@examples(deadline=None, max_examples=150)
@given(
    name=st.sampled_from([f.name for f in FIELDS if f.name != "sampling_parameters"]),
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=8),
        st.lists(st.one_of(st.integers(), st.text(max_size=3)), max_size=3),
    ),
)
def test_any_json_value_is_honoured_or_refused(name: str, value: Any) -> None:
    try:
        merged = merge_values(as_tensors({"sampling_parameters": json.dumps({name: value})}), {})
    except BlockdiffError as error:
        assert "\n" not in str(error)
        return
    for checked in merged.values():
        assert check_value(BY_NAME[name], checked) == checked


FAMILIES = {
    "masks": ModelInfo("llada2_moe", 500, 32, 3, (2,), 256, supports_autoregressive=False),
    "canvases": ModelInfo(
        "diffusion_gemma",
        500,
        8,
        NO_MASK_TOKEN,
        (2,),
        256,
        block_lengths_allowed=(8,),
        algorithms=("entropy_bound",),
        uniform=UniformDefaults(48, 0.1, 0.4, 0.8, 1, 0.005),
    ),
    "none": ModelInfo("qwen3", 500, 8, NO_MASK_TOKEN, (2,), 256),
}


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("masks", {"algorithm": "entropy_bound"}, "^algorithm: .*allowed: low_confidence"),
        ("masks", {"denoise_steps": 33}, "^denoise_steps: 33 .*1 to 32"),
        ("canvases", {"threshold": 0.5}, "^threshold: 0.5 has no meaning for entropy_bound"),
        ("canvases", {"temperature": 1.0}, "^temperature: 1.0 cannot be combined"),
        ("canvases", {"block_length": 16}, "^block_length: 16 .*allowed: 8"),
        ("none", {}, "^mode: diffusion is not possible"),
    ],
)
def test_what_the_model_cannot_honour_is_refused_before_it_waits(
    build: Build, settings: Settings, family: str, fields: dict[str, Any], message: str
) -> None:
    path = facts_file(settings.relay_socket)
    build(text_input="x", **fields)  # nothing is known of the model yet
    write_facts(path, ModelFacts(FAMILIES[family], EngineConfig(), 256))
    with pytest.raises(RequestError, match=message):
        build(text_input="x", **fields)
    if fields:
        build(text_input="x")
    path.write_text("{")  # no reason to refuse anybody
    build(text_input="x", **fields)


@pytest.mark.parametrize(
    ("fields", "budget", "is_open"),
    [
        ({}, None, None),
        ({"thinking_budget": -1, "enable_thinking": True}, None, None),
        ({"thinking_budget": 5, "enable_thinking": True}, 5, True),
        ({"thinking_budget": 5}, 5, False),
        # off: what the model opens all the same is closed at once
        ({"enable_thinking": False}, 0, False),
        ({"thinking_budget": 0, "enable_thinking": False}, 0, False),
        ({"enable_thinking": False, "suffix": "x", "gap": 2}, None, None),
    ],
)
def test_budgets_of_thinking(
    build: Build, tokenizer: Tokenizer, fields: dict[str, Any], budget: Any, is_open: Any
) -> None:
    _, spec = build(messages=json.dumps(USER), **fields)
    found = parse_spec(spec.model_dump_json()).engine_request(1, (1,), None).thinking
    assert (found and found.budget, found and found.is_open) == (budget, is_open)
    if found is not None:
        assert found.end_ids == (tokenizer.special.think_end,)


def test_servers_may_allow_more_stop_words(tokenizer: Tokenizer, settings: Settings) -> None:
    own = replace(settings, max_stop_words=10_000, max_stop_word_characters=2_000)
    words = [f"{n:05d}" for n in range(10_000)]
    assert read_stop_words([*words, "00000", ""], own) == tuple(words)
    assert read_stop_words(["x" * 2_000], own) == ("x" * 2_000,)
    with pytest.raises(RequestError, match="up to 2000 characters each"):
        read_stop_words(["x" * 2_001], own)
    with pytest.raises(RequestError, match="70000 characters., allowed up to 65536 .* in all"):
        read_stop_words([f"{word}ab" for word in words], own)
    with pytest.raises(ConfigError, match="max_stop_words.*got '10001', allowed 1 to 10000"):
        read_settings({"parameters": {"max_stop_words": {"string_value": "10001"}}}, {})


def test_it_needs_no_torch() -> None:
    """Every server has a process for it, which would take seconds and memory for nothing."""
    code = "import sys, blockdiff.serving.preprocessing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
