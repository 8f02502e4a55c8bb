"""Fields that are JSON of numbers by token: logit_bias, stop_ramp, think_end_ramp.

Knows their forms and ranges; knows nothing of tensors or templates.
"""

import re
from collections.abc import Mapping
from typing import Any

from blockdiff.core import Ramp
from blockdiff.errors import RequestError, UnsupportedError
from blockdiff.limits import (
    MAX_BIAS,
    MAX_BIASES,
    MAX_RAMP_BOOST,
    MAX_RAMP_SLOPE,
    MAX_RAMP_START,
)
from blockdiff.serving.json_text import parse_json, refuse, shown

RAMP_RANGES = {"start": MAX_RAMP_START, "slope": MAX_RAMP_SLOPE, "most": MAX_RAMP_BOOST}


def read_biases(text: str) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias of ``logit_bias``; empty text asks for none."""
    given = parse_json("logit_bias", text) if text.strip() else {}
    if not isinstance(given, dict) or len(given) > MAX_BIASES:
        raise refuse("logit_bias", text, f"a JSON object of up to {MAX_BIASES} token ids")
    return tuple(_bias(token, bias) for token, bias in given.items())


def _bias(token: str, bias: Any) -> tuple[int, float]:
    if not re.fullmatch("0|[1-9][0-9]{0,9}", token):
        raise RequestError(f"logit_bias: got key {shown(token)}, allowed token ids")
    if not _is_number(bias) or not -MAX_BIAS <= bias <= MAX_BIAS:
        allowed = f"{-MAX_BIAS:g} to {MAX_BIAS:g}"
        raise RequestError(f"logit_bias: got {shown(bias)} for token {token}, allowed {allowed}")
    return int(token), float(bias)


def read_ramp(name: str, text: str) -> Ramp | None:
    """The ramp of ``name``, for the end tokens of its request; empty text asks for none."""
    if not text.strip():
        return None
    given = parse_json(name, text)
    if not isinstance(given, dict) or set(given) != set(RAMP_RANGES):
        raise refuse(name, text, "a JSON object with start, slope and most")
    for key, high in RAMP_RANGES.items():
        value = given[key]
        is_whole = key != "start" or isinstance(value, int)
        if not _is_number(value) or not is_whole or not 0 <= value <= high:
            kind = "a whole number, " if key == "start" else ""
            raise refuse(f"{name}.{key}", value, f"{kind}0 to {high:g}")
    return Ramp(given["start"], float(given["slope"]), float(given["most"]))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_ramps(
    given: Mapping[str, Any],
    defaults: Mapping[str, str],
    think_end: int | None,
    is_thinking: bool,
) -> tuple[Ramp, ...]:
    """Both ramps of a request, whose fields are ``given``; ``defaults`` where it names none.

    ``think_end``: the token that ends thinking; ``is_thinking``: whether the answer may hold it. A
    default that has no meaning for a request is left out, what the request asks for is refused.
    """
    ignores_eos = given.get("ignore_eos", False)
    if given.get("stop_ramp") and ignores_eos:
        raise refuse("stop_ramp", given["stop_ramp"], "nothing together with ignore_eos")
    if given.get("think_end_ramp"):
        if think_end is None:
            raise UnsupportedError("think_end_ramp: this model has no </think> token; leave it out")
        if not is_thinking:
            text = "nothing where the prompt has ended thinking"
            raise refuse("think_end_ramp", given["think_end_ramp"], text)
    ramps = []
    stop = read_ramp("stop_ramp", given.get("stop_ramp", defaults["stop_ramp"]))
    if stop is not None and not ignores_eos:
        ramps.append(stop)
    end = read_ramp("think_end_ramp", given.get("think_end_ramp", defaults["think_end_ramp"]))
    if end is not None and think_end is not None and is_thinking:
        ramps.append(Ramp(end.start, end.slope, end.most, (think_end,), is_once=True))
    return tuple(ramps)
