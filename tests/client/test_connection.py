"""Where the client connects: addresses, refused connections, proxies, health."""

from __future__ import annotations

import threading

import pytest

from blockdiff_client import (
    Client,
    InvalidArgument,
    RetryPolicy,
    Unavailable,
)

from .fake_server import (
    FakeTriton,
    free_port,
)


def test_a_refused_connection_is_retried_until_the_server_is_up() -> None:
    port = free_port()
    servers: list[FakeTriton] = []
    timer = threading.Timer(0.5, lambda: servers.append(FakeTriton(port)))
    timer.start()
    with Client(f"127.0.0.1:{port}", retry=RetryPolicy(20, 0.2, 0.4)) as client:
        assert client.generate("x").text == "hello world"
    timer.join()
    servers[0].stop()


def test_a_refused_connection_gives_up() -> None:
    retry = RetryPolicy(attempts=2, base=0.01, cap=0.01)
    with (
        Client(f"127.0.0.1:{free_port()}", retry=retry) as client,
        pytest.raises(Unavailable),
    ):
        client.generate("x")


def test_an_http_address_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidArgument, match="gRPC address"):
        Client("http://localhost:8000")


def test_the_environment_names_the_server(
    fake: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLOCKDIFF_URL", fake.url)
    with Client() as client:
        assert client.generate("x").text == "hello world"


def test_a_proxy_setting_does_not_catch_loopback(
    fake: FakeTriton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    with Client(fake.url, retry=RetryPolicy(attempts=1)) as client:
        assert client.generate("x").text == "hello world"


def test_health(fake: FakeTriton, client: Client) -> None:
    health = client.health()
    assert health.is_healthy and health.server_version == "triton 2.51.0"
    assert [model.name for model in health.models] == ["block_diffusion", "ensemble"]
    assert health.limits == {"max_context": 512, "max_queue_size": 64, "priority_levels": 2}
    fake.is_ready = False
    health = client.health()
    assert health.is_live and not health.is_healthy and health.limits == {}


def test_health_of_nothing_is_an_answer() -> None:
    with Client(f"127.0.0.1:{free_port()}") as client:
        health = client.health()
    assert not health.is_healthy and health.error
