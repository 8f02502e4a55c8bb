"""The engine thread: tickets, results from another thread, shutdown, death."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from blockdiff.core import BlockResult, FinishReason
from blockdiff.engine import Engine, EngineConfig, EngineLoop, RequestStopped
from blockdiff.errors import CapacityError, EngineDeadError, RequestError

from .fakes import HashModel, ids, request, run

SOON = 10.0


class Inbox:
    """Collects the results of one request."""

    def __init__(self) -> None:
        self.blocks: list[BlockResult] = []
        self.threads: set[str] = set()
        self.done = threading.Event()

    def __call__(self, result: BlockResult) -> None:
        self.blocks.append(result)
        self.threads.add(threading.current_thread().name)
        if result.is_final:
            self.done.set()

    def wait(self) -> list[BlockResult]:
        assert self.done.wait(SOON), "no final result"
        return self.blocks


def slow(model: HashModel, seconds: float = 0.005) -> HashModel:
    model.before_round = lambda number: time.sleep(seconds)
    return model


@pytest.fixture
def start() -> Iterator[Callable[..., EngineLoop]]:
    loops = []

    def make(model: HashModel, **settings: int) -> EngineLoop:
        loop = EngineLoop(Engine(model, EngineConfig(**settings)))
        loop.start()
        loops.append(loop)
        return loop

    yield make
    for loop in loops:
        loop.shutdown(0.0)


def never() -> None:
    return None


def wait_until(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON
    while not is_true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)


def test_many_callers_get_what_they_would_get_alone(start: Callable[..., EngineLoop]) -> None:
    model = HashModel()
    wanted = [request(uid, [uid % 7, 3], max_tokens=1 + uid % 11) for uid in range(30)]
    alone = {uid: ids(blocks) for uid, blocks in run(Engine(model), wanted).items()}
    loop = start(model, max_slots=3)
    inboxes = {one.uid: Inbox() for one in wanted}

    def call(number: int) -> None:
        for one in wanted[number::5]:
            loop.submit(one, inboxes[one.uid], loop.wait_for_slot(never))

    callers = [threading.Thread(target=call, args=(number,)) for number in range(5)]
    for caller in callers:
        caller.start()
    assert {uid: ids(inbox.wait()) for uid, inbox in inboxes.items()} == alone
    for caller in callers:
        caller.join()
    assert {name for inbox in inboxes.values() for name in inbox.threads} == {"blockdiff-engine"}
    snapshot = loop.snapshot()
    assert snapshot["running"] == 0 and snapshot["free_slots"] == 3 and snapshot["finished"] == 30
    assert snapshot["output_tokens"] == sum(len(output) for output in alone.values())


def test_a_waiter_is_woken_by_a_release_in_order(start: Callable[..., EngineLoop]) -> None:
    loop = start(slow(HashModel()), max_slots=1)
    first = loop.wait_for_slot(never)
    order: list[int] = []

    def wait(number: int) -> None:
        with loop.wait_for_slot(never, poll_seconds=60):
            order.append(number)

    waiters = []
    for number in range(3):
        waiters.append(threading.Thread(target=wait, args=(number,)))
        waiters[-1].start()
        wait_until(lambda: loop.snapshot()["waiting"] == len(waiters))
    first.release()
    first.release()
    for waiter in waiters:
        waiter.join(SOON)
    assert order == [0, 1, 2] and loop.snapshot()["free_slots"] == 1


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.TIMEOUT])
def test_a_waiter_stops_for_its_own_reason(
    start: Callable[..., EngineLoop], reason: FinishReason
) -> None:
    loop = start(HashModel(), max_slots=1)
    ticket = loop.wait_for_slot(never)
    asked = iter([None, None, reason])
    with pytest.raises(RequestStopped) as caught:
        loop.wait_for_slot(lambda: next(asked), poll_seconds=0.001)
    assert caught.value.reason is reason and loop.snapshot()["waiting"] == 0
    ticket.release()
    loop.wait_for_slot(never).release()


def test_a_refused_request_gives_its_ticket_back(start: Callable[..., EngineLoop]) -> None:
    loop = start(slow(HashModel()), max_slots=2)
    with pytest.raises(RequestError, match="max_tokens"):
        loop.submit(request(max_tokens=0), Inbox(), loop.wait_for_slot(never))
    inbox = Inbox()
    loop.submit(request(5, max_tokens=30, ignore_eos=True), inbox, loop.wait_for_slot(never))
    with pytest.raises(RequestError, match="uid: 5"):
        loop.submit(request(5), Inbox(), loop.wait_for_slot(never))
    inbox.wait()
    assert loop.snapshot()["free_slots"] == 2


def test_cancel_from_outside_ends_a_request_within_a_block(
    start: Callable[..., EngineLoop],
) -> None:
    loop = start(slow(HashModel()), max_slots=1)
    inbox = Inbox()
    long = request(1, max_tokens=200, ignore_eos=True, denoise_steps=4)
    loop.submit(long, inbox, loop.wait_for_slot(never))
    wait_until(lambda: len(inbox.blocks) >= 2)
    loop.cancel(1)
    assert inbox.wait()[-1].finish_reason is FinishReason.CANCELLED
    assert len(inbox.blocks) < 10
    loop.wait_for_slot(never, poll_seconds=60).release()


def test_a_callback_that_fails_ends_its_request_only(start: Callable[..., EngineLoop]) -> None:
    loop = start(HashModel(), max_slots=2)

    def broken(result: BlockResult) -> None:
        raise ValueError("listener gone")

    loop.submit(request(1, max_tokens=200, ignore_eos=True), broken, loop.wait_for_slot(never))
    inbox = Inbox()
    loop.submit(request(2), inbox, loop.wait_for_slot(never))
    ids(inbox.wait())
    wait_until(lambda: loop.snapshot()["free_slots"] == 2)
    assert loop.is_healthy and loop.snapshot()["running"] == 0


def test_shutdown_lets_running_requests_finish_and_refuses_new_ones() -> None:
    loop = EngineLoop(Engine(slow(HashModel()), EngineConfig(max_slots=2)))
    loop.start()
    inbox = Inbox()
    running = request(1, max_tokens=24, ignore_eos=True)
    loop.submit(running, inbox, loop.wait_for_slot(never))
    late = loop.wait_for_slot(never)
    caught: list[Exception] = []

    def wait() -> None:
        try:
            loop.wait_for_slot(never, poll_seconds=60)
        except CapacityError as error:
            caught.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(lambda: loop.snapshot()["waiting"] == 1)
    loop.shutdown(SOON)
    waiter.join(SOON)
    assert caught and "shutting down" in str(caught[0])
    assert len(ids(inbox.blocks)) == 24
    with pytest.raises(CapacityError, match="shutting down"):
        loop.submit(request(2), Inbox(), late)
    assert not loop.is_healthy


def test_shutdown_ends_what_does_not_finish_in_time() -> None:
    loop = EngineLoop(Engine(slow(HashModel()), EngineConfig(max_slots=1)))
    loop.start()
    inbox = Inbox()
    loop.submit(request(max_tokens=240, ignore_eos=True), inbox, loop.wait_for_slot(never))
    began = time.monotonic()
    loop.shutdown(0.05)
    assert time.monotonic() - began < 2
    assert "shutting down" in str(inbox.wait()[-1].error)


def dying_model(when: Callable[[], bool]) -> HashModel:
    """A model that has lost a part of itself, for good, as soon as ``when`` says so."""

    class Dying(HashModel):
        def check(self) -> None:
            if when():
                raise EngineDeadError("rank 1 died")

    return Dying()


def test_a_model_that_dies_in_a_round_ends_the_engine_at_once(
    start: Callable[..., EngineLoop],
) -> None:
    """Not after several failed rounds; what the round gave is not handed out."""
    is_dead = threading.Event()
    model = dying_model(is_dead.is_set)
    model.before_round = lambda number: is_dead.set() if number == 2 else None
    loop = start(model, max_slots=1)
    inbox = Inbox()
    loop.submit(request(max_tokens=200, ignore_eos=True), inbox, loop.wait_for_slot(never))
    last = inbox.wait()[-1]
    assert (
        last.error is not None and "rank 1 died" in last.error and "rounds failed" not in last.error
    )
    assert not loop.is_healthy and len(model.rounds) == 3


def test_a_model_that_dies_while_nothing_runs_is_noticed(
    start: Callable[..., EngineLoop],
) -> None:
    is_dead = threading.Event()
    loop = start(dying_model(is_dead.is_set), max_slots=1)
    time.sleep(0.25)
    assert loop.is_healthy
    is_dead.set()
    wait_until(lambda: not loop.is_healthy)
    with pytest.raises(EngineDeadError, match="rank 1 died"):
        loop.wait_for_slot(never)


def test_one_failing_round_fails_its_requests_and_the_loop_lives_on(
    start: Callable[..., EngineLoop],
) -> None:
    model = HashModel()
    broken = [True]

    def fail_once(number: int) -> None:
        if broken.pop() if broken else False:
            raise RuntimeError("one bad round")

    model.before_round = fail_once
    loop = start(model, max_slots=1)
    first, second = Inbox(), Inbox()
    loop.submit(request(1), first, loop.wait_for_slot(never))
    assert "one bad round" in str(first.wait()[-1].error)
    loop.submit(request(2), second, loop.wait_for_slot(never))
    ids(second.wait())
    assert loop.is_healthy


@pytest.mark.parametrize(
    ("error", "rounds"), [(RuntimeError("device lost"), 3), (SystemExit("killed"), 1)]
)
def test_death_fails_everything_and_shows(
    start: Callable[..., EngineLoop], error: BaseException, rounds: int
) -> None:
    model = HashModel()
    dying = threading.Event()
    calls: list[int] = []

    def fail(number: int) -> None:
        calls.append(number)
        if len(calls) == rounds:
            dying.wait(SOON)
        raise error

    model.before_round = fail
    loop = start(model, max_slots=1)
    # Failing rounds one after the other are death at last; an exit is death at once.
    for uid in range(rounds):
        assert loop.is_healthy
        inbox = Inbox()
        loop.submit(request(uid), inbox, loop.wait_for_slot(never))
        if uid < rounds - 1:
            assert "device lost" in str(inbox.wait()[-1].error)
    waiting: list[str] = []

    def wait() -> None:
        try:
            loop.wait_for_slot(never, poll_seconds=60)
        except EngineDeadError as dead:
            waiting.append(str(dead))

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(lambda: loop.snapshot()["waiting"] == 1)
    dying.set()
    waiter.join(SOON)
    assert waiting and "the engine has died" in waiting[0] and "restart" in waiting[0]
    assert inbox.wait()[-1].error
    with pytest.raises(EngineDeadError, match="restart"):
        loop.wait_for_slot(never)
    assert not loop.is_healthy and not loop.snapshot()["is_healthy"]


def test_the_heartbeat_goes_on_when_idle_and_stops_in_a_hang(
    start: Callable[..., EngineLoop],
) -> None:
    model = HashModel()
    hang = threading.Event()
    loop = start(model, max_slots=1)
    before = loop.heartbeat
    wait_until(lambda: loop.heartbeat > before)
    model.before_round = lambda number: None if hang.wait(SOON) else None
    inbox = Inbox()
    loop.submit(request(), inbox, loop.wait_for_slot(never))
    time.sleep(0.3)
    assert float(loop.snapshot()["heartbeat_age_seconds"]) > 0.2
    hang.set()
    inbox.wait()
    wait_until(lambda: float(loop.snapshot()["heartbeat_age_seconds"]) < 0.2)
