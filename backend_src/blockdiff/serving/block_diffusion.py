"""The ``block_diffusion`` model: token ids in, one decoupled response per finished block out.

``execute`` holds a request until it has a slot, so that Triton's own queue (priorities, limits,
timeouts, metrics) is the admission control. Knows the engine loop and Triton's Python interface;
knows nothing of text.
"""

import itertools
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blockdiff.config import load_config
from blockdiff.core import FinishReason, Request
from blockdiff.errors import CapacityError, EngineDeadError, RequestError
from blockdiff.kernel_choice import use_kernels
from blockdiff.serving.checks import check_engine
from blockdiff.serving.dispatcher import ResponseDispatcher
from blockdiff.serving.errors import RETRY_HINT, RequestCancelledError, log, unary_key
from blockdiff.serving.model import ServedModel
from blockdiff.serving.model_facts import ModelFacts, facts_file, remove_facts, write_facts
from blockdiff.serving.monitor import Monitor
from blockdiff.serving.outgoing import OutgoingStream
from blockdiff.serving.progress import LoggedProgress
from blockdiff.serving.relay import CancelReceiver
from blockdiff.serving.served_weights import ModelInfoMetric, identify_weights
from blockdiff.serving.settings import Settings
from blockdiff.serving.spec import RequestSpec, parse_spec
from blockdiff.serving.tensors import input_arrays, text_of


@dataclass(frozen=True)
class ServedEngine:
    """A started engine loop and the check that a request must pass before it may wait."""

    loop: Any
    validate: Callable[[Request], None]
    facts: Mapping[str, str] = field(default_factory=dict)  # what the metrics tell of the model
    close: Callable[[], None] = lambda: None  # ends what the model has started
    checked_against: ModelFacts | None = None  # None: only this process can check requests


def build_engine(
    settings: Settings, say: Callable[[str], None] = lambda line: None
) -> ServedEngine:
    """Loads the checkpoint, warms every kind of round up and starts the engine thread."""
    # Imported here: tests and tools that need no model do without torch.
    import torch

    from blockdiff.checkpoint.load import LoadedModel
    from blockdiff.engine import Engine, EngineLoop
    from blockdiff.parallel.load import load_shared
    from blockdiff.parallel.settings import ParallelSettings
    from blockdiff.text import Tokenizer
    from blockdiff.text.fit import require_fit

    use_kernels(settings.kernels, settings.device, settings.deterministic)
    tokenizer = Tokenizer.load(settings.model)
    require_fit(tokenizer, settings.model, load_config(settings.model))

    def tell(loaded: LoadedModel) -> None:
        for line in (*loaded.notes, str(loaded.report)):
            say(line)

    parallel = ParallelSettings(
        settings.tensor_parallel,
        settings.tensor_parallel_timeout_seconds,
        settings.threads,
        settings.deterministic,
    )
    progress = LoggedProgress("loading weights", say)
    model = load_shared(settings.model, settings.device, settings.dtype, parallel, progress, tell)
    # several ranks: loading has left this thread its share, which the engine's thread needs too
    threads = settings.threads if settings.tensor_parallel == 1 else torch.get_num_threads()
    engine = Engine(model, _engine_config(settings, threads), tokenizer)
    engine.warm_up()
    loop = EngineLoop(engine)
    loop.start()
    facts = {"model_type": model.info.model_type, "dtype": settings.dtype}
    checked = ModelFacts(model.info, engine.config, engine.max_context)
    return ServedEngine(loop, engine.validate, facts, model.close, checked)


def _engine_config(settings: Settings, threads: int | None) -> Any:
    from blockdiff.engine import EngineConfig

    return EngineConfig(
        max_slots=settings.slots,
        max_context=settings.max_context,
        prefill_token_budget=settings.prefill_token_budget,
        max_output_tokens=settings.max_output_tokens,
        num_threads=threads,
        kv_cache_bytes=settings.kv_cache_bytes,
        page_length=settings.page_length,
        prefix_cache=settings.prefix_cache,
        snapshot_bytes=settings.snapshot_bytes,
        snapshot_interval=settings.snapshot_interval,
        truncate_last_block=settings.truncate_last_block,
        deterministic=settings.deterministic,
        load_aware=_load_aware(settings),
        expert_statistics_interval=settings.expert_statistics_interval,
        cuda_graphs=settings.cuda_graphs,
    )


def _load_aware(settings: Settings) -> Any:
    from blockdiff.scheduler.load import LoadAware

    if not settings.load_aware:
        return None
    return LoadAware(settings.load_aware_lowest_threshold, settings.load_aware_fewest_steps)


class BlockDiffusionModel(ServedModel):
    """Triton's side of the engine."""

    where = "block_diffusion"

    def build_engine(self, settings: Settings) -> ServedEngine:
        return build_engine(settings, self._say)

    def start(self, model_config: dict[str, Any], settings: Settings) -> None:
        check_engine(model_config, self.config_file)
        self._settings = settings
        # Unique across restarts too: postprocessing may still hold state of an earlier engine.
        self._uids = itertools.count((secrets.randbits(31) << 32) + 1)
        self._uid_of_key: dict[str, int] = {}
        self._gone: set[int] = set()
        identity = identify_weights(settings, self._say)
        engine = self.build_engine(settings)
        self._info_metric = ModelInfoMetric(self.pb_utils, identity, engine.facts)
        self._loop, self._validate = engine.loop, engine.validate
        self._close_model = engine.close
        self._dispatcher = ResponseDispatcher(self.pb_utils, self._loop.cancel)
        self._receiver = CancelReceiver(
            settings.relay_socket, self._loop.cancel, self._cancel_by_key, self._drain
        )
        self._facts_file = facts_file(settings.relay_socket)
        remove_facts(self._facts_file)
        if engine.checked_against is not None:
            write_facts(self._facts_file, engine.checked_against)
        self._is_draining = False
        self._monitor = Monitor(self.pb_utils, self._snapshot, settings.heartbeat_file)
        for worker in (self._dispatcher, self._receiver, self._monitor):
            worker.start()

    def _say(self, line: str) -> None:
        log(self.pb_utils, "info", f"{self.where}: {line}")

    def is_ready(self) -> bool:
        """Asked by Triton 26.03 and newer."""
        return bool(self._loop.is_healthy) and not self._is_draining

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            try:
                self._admit(request, sender)
            except Exception as error:
                self._dispatcher.refuse(sender, error, bool(unary_key(request)))

    def finalize(self) -> None:
        """Lets running requests finish, then ends every thread."""
        self._loop.shutdown(self._settings.drain_seconds)
        self._close_model()
        remove_facts(self._facts_file)
        for worker in (self._dispatcher, self._receiver, self._monitor):
            worker.close()

    def _admit(self, request: Any, sender: Any) -> None:
        if not self._loop.is_healthy:
            raise EngineDeadError(f"the engine has died; {RETRY_HINT}, the server restarts")
        if self._is_draining:
            raise CapacityError(f"the server is shutting down; {RETRY_HINT} on another one")
        spec, input_ids = self._read(request)
        uid = next(self._uids)
        deadline = self._deadline(request, spec)
        wanted = spec.engine_request(uid, input_ids, deadline)
        self._validate(wanted)
        key = unary_key(request)
        if key:
            self._uid_of_key[key] = uid
        try:
            ticket = self._wait_for_slot(request, uid, deadline)
        except Exception:
            self._uid_of_key.pop(key, None)
            raise
        finally:
            self._gone.discard(uid)
        self._dispatcher.open(OutgoingStream(self.pb_utils, uid, sender, spec, bool(key)))
        try:
            self._loop.submit(wanted, self._on_result(key), ticket)
        except Exception as error:
            self._uid_of_key.pop(key, None)
            self._dispatcher.fail(uid, error)

    def _on_result(self, key: str) -> Callable[[Any], None]:
        if not key:
            return self._dispatcher.post

        def post_and_forget(result: Any) -> None:
            if result.is_final:
                self._uid_of_key.pop(key, None)
                self._gone.discard(result.request_uid)
            self._dispatcher.post(result)

        return post_and_forget

    def _read(self, request: Any) -> tuple[RequestSpec, tuple[int, ...]]:
        arrays = input_arrays(self.pb_utils, request, ("input_ids", "request_spec"))
        for name in ("input_ids", "request_spec"):
            if name not in arrays:
                raise RequestError(f"{name}: missing; call the ensemble or preprocessing first")
        spec = parse_spec(text_of(arrays["request_spec"]))
        return spec, tuple(arrays["input_ids"].reshape(-1).tolist())

    def _deadline(self, request: Any, spec: RequestSpec) -> float:
        """The caller's ``timeout`` (microseconds) or the server's own limit, from arrival on."""
        now = time.monotonic()
        arrived = min(spec.received_at, now) if spec.received_at is not None else now
        limit = self._settings.default_timeout_seconds
        timeout = request.timeout() / 1e6
        return arrived + (min(timeout, limit) if timeout > 0 else limit)

    def _wait_for_slot(self, request: Any, uid: int, deadline: float) -> Any:
        stopped: list[FinishReason] = []

        def should_stop() -> FinishReason | None:
            if uid in self._gone or request.is_cancelled():
                stopped.append(FinishReason.CANCELLED)
            elif time.monotonic() >= deadline:
                stopped.append(FinishReason.TIMEOUT)
            return stopped[-1] if stopped else None

        try:
            return self._loop.wait_for_slot(should_stop)
        except Exception:
            if not stopped:
                raise
            if stopped[-1] is FinishReason.CANCELLED:
                raise RequestCancelledError("the request was cancelled while it waited") from None
            raise CapacityError(
                f"the deadline passed while the request waited for a free slot; {RETRY_HINT}"
            ) from None

    def _drain(self) -> None:
        self._is_draining = True

    def _snapshot(self) -> dict[str, Any]:
        return {**self._loop.snapshot(), "is_draining": self._is_draining}

    def _cancel_by_key(self, key: str) -> None:
        uid = self._uid_of_key.get(key)
        if uid is not None:
            self._gone.add(uid)
            self._loop.cancel(uid)
