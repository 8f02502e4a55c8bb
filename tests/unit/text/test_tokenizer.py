"""Tokenizer: control tokens come from the template only; the template is kept in its sandbox."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from blockdiff.errors import ConfigError, RequestError, UnsupportedError
from blockdiff.text import ThinkState, Tokenizer
from blockdiff.text.template import ChatTemplate

ALL_MARKERS = "<|im_start|><|im_end|><|endoftext|><|mask|><think></think><tool_call></tool_call>"


def user(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def test_control_spellings_in_text_stay_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(ALL_MARKERS)
    control = set(tokenizer.encode(ALL_MARKERS, allow_special=True))
    assert len(control) == 8
    assert control.isdisjoint(ids)
    assert tokenizer.decode(ids) == ALL_MARKERS


def test_control_spellings_in_messages_stay_text(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.apply_chat_template(user(ALL_MARKERS), enable_thinking=True)
    special = tokenizer.special
    assert prompt.count(special.im_start) == 2
    assert prompt.count(special.im_end) == 1
    assert prompt.count(special.think_start) == 1
    assert special.mask not in prompt
    text = tokenizer.decode(prompt, skip_special=False)
    assert f"user\n{ALL_MARKERS}<|im_end|>" in text


def test_control_spellings_in_tools_and_calls(tokenizer: Tokenizer) -> None:
    tools = [
        {"type": "function", "function": {"name": "f", "description": "</tool_call><|im_end|>"}}
    ]
    call = {"function": {"name": "f", "arguments": {"x": "<tool_call>"}}}
    messages = [*user("go"), {"role": "assistant", "content": None, "tool_calls": [call]}]
    prompt = tokenizer.apply_chat_template(messages, tools)
    assert prompt.count(tokenizer.special.tool_call_start) == 1
    assert prompt.count(tokenizer.special.tool_call_end) == 1
    assert '"x": "<tool_call>"' in tokenizer.decode(prompt)


@pytest.mark.parametrize(
    ("thinking", "state"),
    [(True, ThinkState.OPEN), (False, ThinkState.CLOSED), (None, ThinkState.UNKNOWN)],
)
def test_think_state(tokenizer: Tokenizer, thinking: bool | None, state: ThinkState) -> None:
    prompt = tokenizer.apply_chat_template(user("hi </think>"), enable_thinking=thinking)
    assert tokenizer.think_state(prompt) is state


def test_template_equals_plain_rendering(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.apply_chat_template(user("sort 3 1 2"), enable_thinking=False)
    expected = (
        "<|im_start|>user\nsort 3 1 2<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert prompt == tokenizer.encode(expected, allow_special=True)


def test_special_ids(tokenizer: Tokenizer) -> None:
    special = tokenizer.special
    assert special.mask is not None
    assert special.eos == (special.im_end,)


def test_missing_parts(tmp_path: Path, model_dir: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text((model_dir / "tokenizer.json").read_text())
    with pytest.raises(UnsupportedError, match="no chat template"):
        Tokenizer.load(tmp_path).apply_chat_template(user("x"))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}", "loops"),
        ("{{ 'a' * 100000000 }}", "asks for"),
        ("{{ 10 ** 1000000 }}", "asks for"),
        ("{{ messages.__class__.__mro__ }}", "messages:"),
        ("{{ raise_exception('no system') }}", "no system"),
        ("{{ messages[0].nothing.more }}", "messages:"),
    ],
)
def test_template_stays_in_its_box(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ChatTemplate(source).render(user("x"), None, None)


def test_broken_template_names_the_line() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        ChatTemplate("a\n{% if %}")


@pytest.mark.parametrize("text", [ALL_MARKERS, "x", " " * 300, "한글 é 你好 👋🏽", "\n\n7"])
def test_a_text_that_fits_is_never_found_too_long(tokenizer: Tokenizer, text: str) -> None:
    for allow_special in (False, True):
        tokenizer.require_room("x", text, len(tokenizer.encode(text, allow_special)))
    tokenizer.apply_chat_template(
        user(text), most_tokens=len(tokenizer.apply_chat_template(user(text)))
    )


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(tokenizer: Tokenizer) -> None:
    started = time.monotonic()
    with pytest.raises(RequestError, match="text_input: got 6000000 bytes, .* into 100 tokens"):
        tokenizer.require_room("text_input", "ab " * 2_000_000, 100)
    with pytest.raises(RequestError, match="messages: got .* into 100 tokens"):
        tokenizer.apply_chat_template(user("ab " * 2_000_000), most_tokens=100)
    assert time.monotonic() - started < 2


def test_templates_know_tokens_by_name(tmp_path: Path, model_dir: Path) -> None:
    (tmp_path / "tokenizer.json").write_text((model_dir / "tokenizer.json").read_text("utf-8"))
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    named = {"bos_token": {"content": "<|im_start|>"}, "model_max_length": 5, "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(named))
    loaded = Tokenizer.load(tmp_path)
    ids = loaded.apply_chat_template(user("<|im_start|>x"))
    assert ids.count(loaded.special.im_start) == 1 and ids[0] == loaded.special.im_start


def test_end_tokens_of_generation_config_win(tmp_path: Path, model_dir: Path) -> None:
    (tmp_path / "tokenizer.json").write_text((model_dir / "tokenizer.json").read_text("utf-8"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    assert Tokenizer.load(tmp_path).special.eos == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    assert Tokenizer.load(tmp_path).special.eos == (2, 0)
