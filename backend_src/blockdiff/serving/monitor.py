"""Publishes the engine's counters: Triton metrics and the heartbeat file of the supervisor.

Runs on a thread of its own and only reads. Knows nothing of requests.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from blockdiff.serving.errors import log
from blockdiff.serving.worker import Worker

TICK_SECONDS = 0.1
HEARTBEAT_SECONDS = 1.0
Snapshot = Mapping[str, Any]

# (metric, snapshot key, labels, help)
_GAUGES = (
    ("blockdiff_running_requests", "running", "Requests that hold a slot"),
    ("blockdiff_free_slots", "free_slots", "Slots that a request can take at once"),
    ("blockdiff_waiting_requests", "waiting", "Requests that wait for a slot inside execute"),
    ("blockdiff_kv_pages_total", "pages_total", "Pages of keys and values"),
    ("blockdiff_kv_pages_free", "pages_free", "Pages that hold nothing"),
    ("blockdiff_kv_pages_kept", "pages_kept", "Pages of prefixes that no request uses now"),
    ("blockdiff_kv_pages_used", "pages_used", "Pages that running requests hold"),
    ("blockdiff_pressure", "pressure", "Share of recent rounds in which a request waited, 0 to 1"),
)
_COUNTERS = (
    ("blockdiff_rounds_total", "rounds", {}, "Engine rounds (one forward each)"),
    ("blockdiff_output_tokens_total", "output_tokens", {}, "Tokens handed out"),
    (
        "blockdiff_prefix_cache_queried_tokens_total",
        "prefix_queried_tokens",
        {},
        "Prompt tokens looked up among kept prefixes",
    ),
    (
        "blockdiff_prefix_cache_hit_tokens_total",
        "prefix_hit_tokens",
        {},
        "Of these, tokens that were not computed again",
    ),
    (
        "blockdiff_preemptions_total",
        "preemptions",
        {},
        "Times that a request lost its pages to others, to come back when there is room",
    ),
    ("blockdiff_failed_requests_total", "failed", {}, "Requests that failed inside the engine"),
    (
        "blockdiff_expert_sampled_rows_total",
        "expert_rows",
        {},
        "Rows whose choice of experts was counted",
    ),
    *(
        (
            "blockdiff_replayed_rounds_total",
            key,
            {"step": step},
            "Rounds that replayed a captured step",
        )
        for step, key in (("forward", "rounds_replayed"), ("choice", "rounds_decided"))
    ),
    *(
        (
            "blockdiff_plain_rounds_total",
            f"rounds_plain_{reason}",
            {"reason": reason},
            "Rounds that did not, where steps are captured",
        )
        for reason in ("long", "waves", "size")
    ),
    *(
        (
            "blockdiff_forwards_total",
            f"forwards_{phase}",
            {"phase": phase},
            "Forwards in which a request had rows, by what the rows did",
        )
        for phase in ("prefill", "preview", "commit", "commit_fused")
    ),
)


# (metric, key in the facts of a layer, help)
_LAYER_GAUGES = (
    ("blockdiff_expert_imbalance", "imbalance", "Hits of a layer's most used expert over the mean"),
    ("blockdiff_experts_active", "active", "Share of a layer's experts that any row has chosen"),
)


class EngineMetrics:
    """Triton's own metrics endpoint shows these; silently absent where the server has none."""

    def __init__(self, pb_utils: Any) -> None:
        self._gauges: dict[str, Any] = {}
        self._counters: dict[str, Any] = {}
        self._shown: dict[str, float] = {}
        self._families: dict[str, Any] = {}
        self._layers: dict[str, Any] = {}
        self._pb_utils = pb_utils
        try:
            self._create(pb_utils)
        except Exception as error:
            log(pb_utils, "warn", f"block_diffusion: no metrics of its own ({error})")
            self._gauges, self._counters = {}, {}

    def _create(self, pb_utils: Any) -> None:
        kinds = pb_utils.MetricFamily
        for name, key, text in _GAUGES:
            self._gauges[key] = self._metric(pb_utils, name, text, kinds.GAUGE, {})
        for name, key, labels, text in _COUNTERS:
            self._counters[key] = self._metric(pb_utils, name, text, kinds.COUNTER, labels)

    def _metric(
        self, pb_utils: Any, name: str, text: str, kind: Any, labels: Mapping[str, str]
    ) -> Any:
        if name not in self._families:
            self._families[name] = pb_utils.MetricFamily(name=name, description=text, kind=kind)
        return self._families[name].Metric(labels={"model": "block_diffusion", **labels})

    def show(self, snapshot: Snapshot) -> None:
        """Sends only what changed: each value is one message to the server process."""
        for key, metric in self._gauges.items():
            value = float(snapshot.get(key, 0))
            if self._shown.get(key) != value:
                metric.set(value)
                self._shown[key] = value
        for key, metric in self._counters.items():
            value = float(snapshot.get(key, 0))
            step = value - self._shown.get(key, 0.0)
            if step > 0:
                metric.increment(step)
                self._shown[key] = value
        if self._gauges:
            self._show_layers(snapshot.get("expert_layers", {}))

    def _show_layers(self, layers: Mapping[int, Mapping[str, float]]) -> None:
        """One gauge a layer, made when the engine first tells of it."""
        for name, key, text in _LAYER_GAUGES:
            kind = self._pb_utils.MetricFamily.GAUGE
            for layer, facts in layers.items():
                shown_as, value = f"{name} {layer}", round(facts[key], 3)
                if shown_as not in self._layers:
                    labels = {"layer": str(layer)}
                    self._layers[shown_as] = self._metric(self._pb_utils, name, text, kind, labels)
                if self._shown.get(shown_as) != value:
                    self._layers[shown_as].set(value)
                    self._shown[shown_as] = value


def write_heartbeat(path: Path, snapshot: Snapshot) -> None:
    """Replaces the heartbeat file in one step, so that a reader never sees half of it.

    ``monotonic`` is the time of the engine's last round; 0 tells that it will make no more.
    """
    beat = time.monotonic() - float(snapshot.get("heartbeat_age_seconds", 0.0))
    is_healthy = bool(snapshot.get("is_healthy", True))
    content = {**snapshot, "pid": os.getpid(), "monotonic": beat if is_healthy else 0.0}
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(json.dumps(content), encoding="utf-8")
    partial.replace(path)


class Monitor(Worker):
    """The thread. ``snapshot`` must be safe to call from any thread."""

    def __init__(
        self,
        pb_utils: Any,
        snapshot: Callable[[], Snapshot],
        heartbeat_file: Path | None,
    ) -> None:
        super().__init__("blockdiff-monitor")
        self._pb_utils = pb_utils
        self._snapshot = snapshot
        self._heartbeat_file = heartbeat_file
        self._metrics = EngineMetrics(pb_utils)

    def close(self) -> None:
        super().close()
        if self._heartbeat_file is not None:
            self._heartbeat_file.unlink(missing_ok=True)

    def run(self) -> None:
        beat_at = 0.0
        has_complained = False
        while True:
            try:
                snapshot = self._snapshot()
                self._metrics.show(snapshot)
                if self._heartbeat_file is not None and time.monotonic() >= beat_at:
                    write_heartbeat(self._heartbeat_file, snapshot)
                    beat_at = time.monotonic() + HEARTBEAT_SECONDS
            except Exception as error:
                if not has_complained:
                    with contextlib.suppress(Exception):
                        log(self._pb_utils, "error", f"block_diffusion: monitor: {error!r}")
                has_complained = True
            if self._is_closing.wait(TICK_SECONDS):
                return
