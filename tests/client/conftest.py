"""Fixtures of the client tests: a scripted server in this process, and clients for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from blockdiff_client import Client, RetryPolicy

from .fake_server import FakeTriton


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    server = FakeTriton()
    yield server
    server.stop()


@pytest.fixture
def client(fake: FakeTriton) -> Iterator[Client]:
    with Client(fake.url, retry=RetryPolicy(attempts=3, base=0.01, cap=0.02)) as made:
        yield made
