"""What ``blockdiff logits`` is asked: one checked request per JSON line or per command line.

Accepts entries of golden fixtures. Knows nothing of models beyond their facts, nor of tensors.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blockdiff.errors import ConfigError, RequestError
from blockdiff.models.base import ModelInfo

BLOCK_CAUSAL = "block_causal"
CANVAS = "canvas"
SIGNAL = "self_conditioning_logits"
PHASES = ("prefill", "preview", "commit")
KINDS = {"prefill_logits": "prefill", "preview_logits": "preview", "commit": "commit"}
ID_FIELDS = ("input_ids", "prefix_ids", "block_ids", "next_ids", "next_preview_ids")
OPTION_FIELDS = ("block_length", "mask_id", "formulation")
# annotations of golden entries that ask for nothing
NOTES = ("description", "tolerance", "state_tolerance", "info", "reference_forwards")
TRACED_ROLES = ("layer_outputs", "mixer_input", "mixer_output", "mixer_probabilities")


@dataclass(frozen=True)
class LogitRequest:
    """One check. ``prefix_ids`` are committed first; the rest depends on ``phase``."""

    name: str  # "" for the single request of a command line
    phase: str
    prefix_ids: tuple[int, ...]  # empty for prefill
    block_ids: tuple[int, ...]  # the rows whose logits are wanted; for prefill the prompt
    next_ids: tuple[int, ...] = ()
    next_preview_ids: tuple[int, ...] = ()
    wants_trace: bool = False
    block_length: int = 1
    previews_next: bool = False  # whether ``next_ids`` are a block to preview, or causal rows
    reports_hidden: bool = False
    signal: str | None = None  # recorded logits of the step before the preview

    @property
    def total_tokens(self) -> int:
        """Positions the request reaches."""
        after = max(len(self.next_ids), len(self.next_preview_ids))
        return len(self.prefix_ids) + len(self.block_ids) + after


def read_requests(path: Path, info: ModelInfo, formulation: str) -> list[LogitRequest]:
    """Requests of a JSON-lines file; names must be there and differ."""
    try:
        # not splitlines: JSON texts may hold other line separators as they are
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--requests {path}: cannot be read ({error})") from None
    found: dict[str, LogitRequest] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path.name} line {number}: "
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{place}not JSON ({error})") from None
        if not isinstance(fields, dict):
            raise RequestError(f"{place}must be a JSON object")
        name = fields.get("name")
        if not isinstance(name, str) or not name or not _is_utf8(name) or name in found:
            raise RequestError(f"{place}name is {name!r}; must be a text that no other line has")
        found[name] = parse_request(fields, info, formulation, place)
    if not found:
        raise RequestError(f"--requests {path}: holds no request")
    return list(found.values())


def _is_utf8(text: str) -> bool:
    # an escape in JSON may give a lone surrogate, which no file of tensors can hold
    return text == text.encode("utf-8", "ignore").decode("utf-8")


def parse_request(
    fields: Mapping[str, Any], info: ModelInfo, formulation: str, place: str = ""
) -> LogitRequest:
    """Check one request; ``place`` goes before every error text."""
    values = _merge(fields, place)
    phase = _phase(values, place)
    _options(values, info, formulation, place)
    ids = {f: _ids(values, f, info, place) for f in ID_FIELDS if values.get(f) is not None}
    wants_trace = _wants_trace(values, place)
    if phase == "prefill":
        _only(ids, ("input_ids",), phase, place)
        prompt = ids.get("input_ids", ())
        request = LogitRequest(_name(values), phase, (), prompt, wants_trace=wants_trace)
    else:
        if "input_ids" in ids and "prefix_ids" in ids:
            raise RequestError(f"{place}input_ids and prefix_ids mean the same here; give one")
        extra = ("next_ids", "next_preview_ids") if phase == "commit" else ()
        _only(ids, ("input_ids", "prefix_ids", "block_ids", *extra), phase, place)
        request = LogitRequest(
            _name(values),
            phase,
            ids.get("prefix_ids", ids.get("input_ids", ())),
            ids.get("block_ids", _masks(values, info) if phase == "preview" else ()),
            ids.get("next_ids", ()),
            ids.get("next_preview_ids", ()),
            wants_trace,
        )
    _check_lengths(request, values, info, place)
    length = values.get("block_length") or info.block_length
    if formulation == BLOCK_CAUSAL:
        _check_grid(request, length, place)
    if formulation == CANVAS:
        _check_canvases(request, length, place)
    return replace(
        request,
        block_length=length,
        previews_next=formulation in (BLOCK_CAUSAL, CANVAS),
        reports_hidden=formulation == CANVAS,
        signal=_signal(values, phase, formulation, place),
    )


def _merge(fields: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Fields with ``params`` merged in; unknown ones are errors."""
    params = fields.get("params") or {}
    if not isinstance(params, Mapping):
        raise RequestError(f"{place}params must be an object")
    values = {k: v for k, v in fields.items() if k != "params"}
    twice = sorted(set(values) & set(params))
    if twice:
        raise RequestError(f"{place}{twice[0]} is given twice, once in params")
    values.update(params)
    known = {"name", "phase", "kind", "expected", "inputs", "self_conditioning"}
    known.update(ID_FIELDS, OPTION_FIELDS, NOTES)
    unknown = sorted(k for k, v in values.items() if k not in known)
    if unknown:
        raise RequestError(f"{place}{unknown[0]} is not a field of logits; known: {sorted(known)}")
    return values


def _wants_trace(values: Mapping[str, Any], place: str) -> bool:
    expected = values.get("expected") or {}
    if not isinstance(expected, Mapping):
        raise RequestError(f"{place}expected must be an object of roles")
    return any(role in TRACED_ROLES for role in expected)


def _signal(values: Mapping[str, Any], phase: str, formulation: str, place: str) -> str | None:
    """The name of the recorded logits of the step before, where the family uses them."""
    inputs, is_wanted = values.get("inputs"), values.get("self_conditioning")
    if not inputs and not is_wanted:
        return None
    if formulation != CANVAS or phase != "preview":
        field = "inputs" if inputs else "self_conditioning"
        raise RequestError(f"{place}{field} is {values[field]!r}; there is no use for it here")
    given = inputs if isinstance(inputs, Mapping) else {}
    name = given.get(SIGNAL)
    if not isinstance(name, str) or len(given) != 1 or is_wanted is False:
        raise RequestError(
            f"{place}inputs is {inputs!r}; must be {{{SIGNAL!r}: name}}, with self_conditioning"
        )
    return name


def _phase(values: Mapping[str, Any], place: str) -> str:
    kind = values.get("kind")
    if kind is not None and (not isinstance(kind, str) or kind not in KINDS):
        raise RequestError(f"{place}kind is {kind!r}; must be one of {sorted(KINDS)}")
    phase = values.get("phase", KINDS.get(kind) if kind is not None else None)
    if phase not in PHASES:
        raise RequestError(f"{place}phase is {phase!r}; must be one of {list(PHASES)}")
    if kind is not None and KINDS[kind] != phase:
        raise RequestError(f"{place}phase {phase!r} contradicts kind {kind!r}")
    return str(phase)


def _options(values: Mapping[str, Any], info: ModelInfo, formulation: str, place: str) -> None:
    asked = values.get("formulation")
    if asked is not None and asked != formulation:
        raise RequestError(
            f"{place}formulation is {asked!r}; {info.model_type} previews by {formulation!r} only"
        )
    for field, low, high in (
        ("block_length", 1, info.max_context),
        ("mask_id", 0, info.vocab_size - 1),
    ):
        value = values.get(field)
        if value is not None and (type(value) is not int or not low <= value <= high):
            raise RequestError(f"{place}{field} is {value!r}; must be from {low} to {high}")
    length, allowed = values.get("block_length"), info.block_lengths_allowed
    if allowed is not None and length not in (None, *allowed):
        raise RequestError(f"{place}block_length is {length}; this model allows {list(allowed)}")


def _ids(values: Mapping[str, Any], field: str, info: ModelInfo, place: str) -> tuple[int, ...]:
    ids = values[field]
    top = info.vocab_size - 1
    if not isinstance(ids, list | tuple):
        raise RequestError(f"{place}{field} must be a list of token ids from 0 to {top}")
    for token in ids:
        if type(token) is not int or not 0 <= token <= top:
            raise RequestError(f"{place}{field} holds {token!r}; token ids go from 0 to {top}")
    return tuple(ids)


def _only(ids: Iterable[str], allowed: tuple[str, ...], phase: str, place: str) -> None:
    for field in ids:
        if field not in allowed:
            raise RequestError(f"{place}{field} has no meaning in phase {phase!r}")


def _masks(values: Mapping[str, Any], info: ModelInfo) -> tuple[int, ...]:
    """A block of masks, for a preview that names no block."""
    mask = values.get("mask_id")
    mask = info.mask_token_id if mask is None else mask
    length = values.get("block_length") or info.block_length
    return (mask,) * length if mask >= 0 else ()


def _check_lengths(
    request: LogitRequest, values: Mapping[str, Any], info: ModelInfo, place: str
) -> None:
    field = "input_ids" if request.phase == "prefill" else "block_ids"
    if not request.block_ids:
        raise RequestError(f"{place}{field} is empty or missing; it must hold at least one id")
    length = values.get("block_length")
    if request.phase != "prefill" and length is not None and len(request.block_ids) > length:
        raise RequestError(
            f"{place}block_ids has {len(request.block_ids)} ids; block_length allows {length}"
        )
    if request.total_tokens > info.max_context:
        raise RequestError(
            f"{place}{request.total_tokens} positions; the context allows {info.max_context}"
        )


def _check_grid(request: LogitRequest, length: int, place: str) -> None:
    """Blocks of a block-causal family begin at multiples of the block length."""
    if len(request.prefix_ids) % length:
        raise RequestError(
            f"{place}prefix_ids has {len(request.prefix_ids)} ids; this family's blocks need a "
            f"multiple of block_length {length}"
        )
    if request.next_ids and len(request.block_ids) % length:
        raise RequestError(
            f"{place}block_ids has {len(request.block_ids)} ids; next_ids can only follow a "
            f"multiple of block_length {length}"
        )
    if request.next_preview_ids:
        raise RequestError(f"{place}next_preview_ids: this family previews next_ids")


def _check_canvases(request: LogitRequest, length: int, place: str) -> None:
    """There are signals for so many places only."""
    canvases = {"next_ids": request.next_ids, "next_preview_ids": request.next_preview_ids}
    if request.phase == "preview":
        canvases["block_ids"] = request.block_ids
    for field, ids in canvases.items():
        if len(ids) > length:
            raise RequestError(f"{place}{field} has {len(ids)} ids; a canvas has {length}")


def _name(values: Mapping[str, Any]) -> str:
    return str(values.get("name") or "")
