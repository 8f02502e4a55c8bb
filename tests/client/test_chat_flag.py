"""`blockdiff-client generate --chat`: the prompt becomes a user's message."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from blockdiff_client.cli.main import app

from .fake_server import FakeTriton


@pytest.mark.parametrize(("prompt", "stdin"), [("sort 2 1", None), ("-", "sort 2 1\n")])
def test_a_prompt_may_be_a_users_message(fake: FakeTriton, prompt: str, stdin: str | None) -> None:
    command = ["generate", "--chat", prompt, "--url", fake.url]
    assert CliRunner().invoke(app, command, input=stdin).exit_code == 0
    inputs = fake.seen[0].inputs
    assert json.loads(inputs["messages"]) == [{"role": "user", "content": "sort 2 1"}]
    assert "text_input" not in inputs


def test_messages_are_a_chat_already(fake: FakeTriton) -> None:
    command = ["generate", "--chat", "--messages", "[]", "--url", fake.url]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2 and fake.seen == []
    assert result.stderr == "error: --chat goes with a prompt; --messages are a chat already\n"
