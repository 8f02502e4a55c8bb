"""Requests of ``blockdiff generate``: flags and files as checked lines, lines as jobs.

Knows files and the form of flags; knows nothing of engines or output.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from blockdiff.cli.line_fields import RequestLine, check_fields, parse_line
from blockdiff.cli.loading import naming, read_lines
from blockdiff.cli.request_lines import build_request
from blockdiff.errors import ConfigError
from blockdiff.jobs import Job
from blockdiff.models.base import BlockDiffusionModel
from blockdiff.text import Tokenizer


class Line(NamedTuple):
    place: str
    """Where the request was given, for error texts; empty for flags."""
    fields: RequestLine


def json_flag(flag: str, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{flag}: not JSON ({error.msg} at column {error.colno})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{flag}: not JSON of ordinary depth and numbers") from error


def ids_flag(flag: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")] if text.strip() else []
    except ValueError as error:
        raise ConfigError(
            f"{flag}: {text[:60]!r} must be token ids separated by commas, e.g. 1,2,3"
        ) from error


def read_requests(path: Path | None, flags: Mapping[str, Any]) -> list[Line]:
    """The checked lines of ``--requests`` (flags are their defaults), or the one made by flags."""
    if path is None:
        return [Line("", check_fields(flags))]
    for field in ("prompt", "messages", "input_ids"):
        if field in flags:
            raise ConfigError(f"{field}, requests: only one of them may be given")
    lines = []
    for place, text in read_lines("requests", path):
        with naming(place):
            lines.append(Line(place, check_fields({**flags, **parse_line(text)})))
    return lines


def build_jobs(
    lines: Sequence[Line], model: BlockDiffusionModel, tokenizer: Tokenizer | None
) -> list[Job]:
    jobs = []
    for uid, (place, fields) in enumerate(lines):
        with naming(place):
            request = build_request(fields, uid, model.info, tokenizer)
        seconds = fields.arrive_after_seconds
        jobs.append(
            Job(
                request,
                fields.name,
                seconds,
                place,
                fields.inputs,
                fields.return_log_probs,
                fields.include_stop_str_in_output,
            )
        )
    return jobs
