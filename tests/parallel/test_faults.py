"""A rank that dies, hangs or cannot start ends the group within seconds, by name, leaving nothing.

Run: pytest tests/parallel/test_faults.py
"""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from blockdiff.checkpoint.load import load_with_report
from blockdiff.core import DecodingParams, Request
from blockdiff.engine import Engine, EngineConfig, EngineLoop
from blockdiff.errors import ConfigError, EngineDeadError
from blockdiff.parallel import load
from blockdiff.parallel.load import load_parallel, rank_devices
from blockdiff.parallel.model import ParallelModel
from blockdiff.parallel.settings import ParallelSettings
from tests.golden.cases import FIXTURES

from .processes import SOON_SECONDS, is_running, wait_until

FOLDER = FIXTURES / "clover_moe" / "layers4_block8"
SHORT_TIMEOUT = 3.0
pytestmark = pytest.mark.chaos


def start(size: int = 2, timeout: float = 60.0, folder: Path = FOLDER) -> ParallelModel:
    return load_parallel(folder, "cpu", "float32", ParallelSettings(size, timeout))


@pytest.fixture
def model() -> Iterator[ParallelModel]:
    made = start()
    yield made
    made.close()


def generating(model: ParallelModel) -> Engine:
    """An engine in the middle of a long generation."""
    engine = Engine(model, EngineConfig(max_slots=1, max_context=128))
    decoding = DecodingParams(threshold=1.0)
    engine.add_request(Request(0, (1, 2, 3), 120, ignore_eos=True, decoding=decoding))
    for _ in range(3):
        engine.step()
    return engine


def step_on(engine: Engine) -> None:
    while engine.has_work:
        engine.step()


def fault_of(run: Callable[[], object]) -> str:
    """The text of the error that ends ``run``; it must come soon and be one line."""
    began = time.monotonic()
    with pytest.raises(EngineDeadError) as caught:
        run()
    assert time.monotonic() - began < SOON_SECONDS
    assert "\n" not in str(caught.value)
    return str(caught.value)


def assert_gone(model: ParallelModel) -> None:
    assert model.followers
    assert not any(is_running(follower.process.pid) for follower in model.followers)


@pytest.mark.parametrize("size", [2, 4])
def test_killed_follower_is_named(size: int) -> None:
    """With four ranks the survivors fail too, but are not to blame."""
    model = start(size)
    engine = generating(model)
    victim = model.followers[size // 2 - 1]
    kill = threading.Timer(0.05, os.kill, (victim.process.pid, signal.SIGKILL))
    kill.start()
    text = fault_of(lambda: step_on(engine))
    name = f"tensor parallel rank {victim.rank} (pid {victim.process.pid})"
    assert text == f"{name} died: killed by signal 9"
    assert_gone(model)
    # nothing works afterwards, and says so with the same words
    assert fault_of(model.check) == text
    assert fault_of(lambda: model.new_caches(1, 16)) == text


def test_stopped_follower_is_bounded_by_the_timeout() -> None:
    model = start(timeout=SHORT_TIMEOUT)
    engine = generating(model)
    (victim,) = model.followers
    os.kill(victim.process.pid, signal.SIGSTOP)
    text = fault_of(lambda: step_on(engine))
    assert f"rank 1 (pid {victim.process.pid}) did not answer within 3 s" in text
    assert "stopped by a signal" in text
    assert_gone(model)


def test_an_idle_engine_loop_notices(model: ParallelModel) -> None:
    loop = EngineLoop(Engine(model, EngineConfig(max_slots=1, max_context=64)))
    loop.start()
    time.sleep(0.3)
    assert loop.is_healthy
    os.kill(model.followers[0].process.pid, signal.SIGKILL)
    wait_until(lambda: not loop.is_healthy, "the loop is not healthy any more")
    with pytest.raises(EngineDeadError, match="rank 1 .* died: killed by signal 9"):
        loop.wait_for_slot(lambda: None)
    loop.shutdown(0)


def test_follower_that_fails_in_a_command_says_why(model: ParallelModel) -> None:
    unknown = (99).to_bytes(8, "little") + bytes(32)
    text = fault_of(lambda: model.together(unknown, lambda: wait_until(model.check, "the fault")))
    assert "rank 1" in text and "ValueError: 99 is not a valid Command" in text
    assert_gone(model)


def test_rank_0_that_fails_ends_the_others(
    model: ParallelModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise MemoryError("no room")

    engine = generating(model)
    monkeypatch.setattr(model.own, "hidden", fail)
    text = fault_of(lambda: step_on(engine))
    assert text == "tensor parallel rank 0 failed: MemoryError: no room"
    assert_gone(model)


def test_model_that_is_dropped_ends_the_others() -> None:
    model = start()
    pids = [follower.process.pid for follower in model.followers]
    assert all(map(is_running, pids))
    del model
    wait_until(lambda: not any(map(is_running, pids)), "the follower ends")


def test_follower_that_cannot_load_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 gets the whole file here, the follower only half of it."""
    folder = Path(shutil.copytree(FOLDER, tmp_path / "model"))
    stored = folder / "model.safetensors"
    stored.write_bytes(stored.read_bytes()[: stored.stat().st_size // 2])
    monkeypatch.setattr(
        load, "load_with_report", lambda path, *rest: load_with_report(FOLDER, *rest)
    )
    with pytest.raises(ConfigError) as caught:
        start(folder=folder)
    text = str(caught.value)
    assert "tensor parallel rank 1" in text and "\n" not in text
    assert "model.safetensors is damaged or truncated" in text


def test_rank_0_that_cannot_load_leaves_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    real = load.Ranks
    monkeypatch.setattr(load, "Ranks", lambda *given: started.append(real(*given)) or started[0])
    folder = Path(shutil.copytree(FOLDER, tmp_path / "model"))
    (folder / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="damaged or truncated"):
        start(folder=folder)
    (ranks,) = started
    assert ranks.followers
    assert not any(is_running(follower.process.pid) for follower in ranks.followers)


def test_devices() -> None:
    assert rank_devices("cpu", 3) == ["cpu", "cpu", "cpu"]
    with pytest.raises(ConfigError, match="device is 'cuda:1'"):
        rank_devices("cuda:1", 2)
    with pytest.raises(ConfigError, match="99 needs 99 CUDA devices"):
        rank_devices("cuda", 99)


@pytest.mark.parametrize(("size", "timeout"), [(0, 60.0), (2, 0.0), (2, float("nan"))])
def test_settings_out_of_range(size: int, timeout: float) -> None:
    with pytest.raises(ConfigError, match="it must be"):
        ParallelSettings(size, timeout)


def test_threads_are_shared_out() -> None:
    assert ParallelSettings(4, threads=10).share_threads(64) == 2
    assert ParallelSettings(4).share_threads(2) == 1
