"""The questions that make up a health report, in order, and how the answers are read.

``questions`` is a generator of (stub method, request) that is sent each reply or ClientError, so
that the sync and the async client ask alike. Knows nothing of channels.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from tritonclient.grpc import service_pb2

from .errors import ClientError
from .types import Health, ModelHealth

Question = tuple[str, Any]
ENGINE_MODEL = "block_diffusion"


def questions(url: str, model: str) -> Generator[Question, Any, Health]:
    """Ask for liveness, readiness, version, models and limits; returns the Health."""
    report = Health(url=url, model=model)
    reply = yield "ServerLive", service_pb2.ServerLiveRequest()
    if isinstance(reply, ClientError):
        return replace(report, error=reply.message)
    report = replace(report, is_live=bool(reply.live))
    reply = yield "ServerReady", service_pb2.ServerReadyRequest()
    if not isinstance(reply, ClientError):
        report = replace(report, is_ready=bool(reply.ready))
    reply = yield "ServerMetadata", service_pb2.ServerMetadataRequest()
    if not isinstance(reply, ClientError):
        report = replace(report, server_version=f"{reply.name} {reply.version}")
    models = yield from _ask_models(model)
    limits: dict[str, int | float | str] = {}
    for known in models:
        if known.is_ready and known.name in (model, ENGINE_MODEL):
            reply = yield "ModelConfig", service_pb2.ModelConfigRequest(name=known.name)
            if not isinstance(reply, ClientError):
                limits.update(read_limits(reply.config))
    return replace(report, models=models, limits=limits)


def _ask_models(model: str) -> Generator[Question, Any, tuple[ModelHealth, ...]]:
    """State of every model of the repository; of ``model`` alone when there is no index."""
    reply = yield "RepositoryIndex", service_pb2.RepositoryIndexRequest()
    entries = {} if isinstance(reply, ClientError) else {item.name: item for item in reply.models}
    models = []
    for name in sorted({*entries, model}):
        entry = entries.get(name)
        reply = yield "ModelReady", service_pb2.ModelReadyRequest(name=name)
        is_error = isinstance(reply, ClientError)
        models.append(
            ModelHealth(
                name=name,
                is_ready=not is_error and bool(reply.ready),
                state=entry.state if entry is not None else "",
                reason=reply.message if is_error else (entry.reason if entry is not None else ""),
            )
        )
    return tuple(models)


def read_limits(config: Any) -> dict[str, int | float | str]:
    """Published limits of a ModelConfig: its parameters and its queue policy."""
    limits: dict[str, int | float | str] = {
        name: _number(value.string_value)
        for name, value in sorted(config.parameters.items())
        if value.string_value and "/" not in value.string_value
    }
    if config.HasField("dynamic_batching"):
        policy = config.dynamic_batching.default_queue_policy
        if policy.max_queue_size:
            limits["max_queue_size"] = int(policy.max_queue_size)
        if config.dynamic_batching.priority_levels:
            limits["priority_levels"] = int(config.dynamic_batching.priority_levels)
    return limits


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
