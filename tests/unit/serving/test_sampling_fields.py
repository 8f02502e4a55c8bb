"""Penalties, biases, ramps and what is told of tokens: from public fields to the engine."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from blockdiff.core import Ramp, SamplingParams
from blockdiff.errors import ConfigError, RequestError, UnsupportedError
from blockdiff.serving.sampling_fields import read_biases, read_ramps
from blockdiff.serving.settings import read_settings
from blockdiff.serving.spec import parse_spec
from blockdiff.text import Tokenizer

Build = Callable[..., Any]
RAMP = {"start": 8, "slope": 0.25, "most": 4}
TEXT = json.dumps(RAMP)
NONE = {"stop_ramp": "", "think_end_ramp": ""}


def test_every_field_reaches_the_engine(build: Build, tokenizer: Tokenizer) -> None:
    _, spec = build(
        text_input="x",
        seed=3,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=2.0,
        logit_bias='{"17": -5, "4": 0.5}',
        stop_ramp=TEXT,
        think_end_ramp=TEXT,
        top_logprobs=20,
        return_step_map=True,
    )
    request = parse_spec(spec.model_dump_json()).engine_request(1, (1,), None)
    end = tokenizer.special.think_end
    assert end is not None
    assert request.sampling == SamplingParams(
        seed=3,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=2.0,
        logit_bias=((17, -5.0), (4, 0.5)),
        ramps=(Ramp(8, 0.25, 4.0), Ramp(8, 0.25, 4.0, (end,), is_once=True)),
    )
    assert (request.num_top_log_probs, request.wants_step_map) == (20, True)
    plain = build(text_input="x", logit_bias="", stop_ramp="")[1].engine_request(1, (1,), None)
    assert plain.sampling == SamplingParams(seed=plain.sampling.seed)
    inside = json.dumps({"logit_bias": {"17": 1}, "stop_ramp": RAMP})
    spec = build(text_input="x", sampling_parameters=inside)[1]
    assert (spec.logit_bias, spec.ramps) == (((17, 1.0),), (Ramp(8, 0.25, 4.0),))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"logit_bias": "[1]"}, "logit_bias: got .*JSON object of up to 1024"),
        ({"logit_bias": '{"01": 1}'}, "logit_bias: got key .*01.*token ids"),
        ({"logit_bias": '{"1": 1, "1": 2}'}, "logit_bias: got .* twice"),
        ({"logit_bias": '{"1": true}'}, "logit_bias: got true for token 1, allowed -100 to 100"),
        ({"logit_bias": '{"1": 101}'}, "logit_bias: got 101 for token 1"),
        ({"logit_bias": "{"}, "logit_bias: got .*JSON"),
        ({"stop_ramp": "{}"}, "stop_ramp: got .*start, slope and most"),
        ({"stop_ramp": json.dumps({**RAMP, "end": 3})}, "stop_ramp: got"),
        ({"stop_ramp": json.dumps({**RAMP, "start": 1.5})}, "stop_ramp.start: got 1.5, .*whole"),
        ({"stop_ramp": json.dumps({**RAMP, "slope": -1})}, "stop_ramp.slope: got -1, .*0 to 1000"),
        ({"think_end_ramp": json.dumps({**RAMP, "most": "4"})}, "think_end_ramp.most: got"),
        ({"stop_ramp": TEXT, "ignore_eos": True}, "stop_ramp: got .*ignore_eos"),
        ({"min_p": 1.5}, "min_p: got 1.5, allowed 0 to 1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty: got 0, allowed more than 0"),
        ({"presence_penalty": 2.5}, "presence_penalty: got 2.5, allowed -2 to 2"),
        ({"top_logprobs": 21}, "top_logprobs: got 21, allowed 0 to 20"),
    ],
)
def test_refusals(build: Build, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=f"^{text}") as caught:
        build(text_input="x", **fields)
    assert "\n" not in str(caught.value)


def test_biases_are_not_too_many() -> None:
    assert len(read_biases(json.dumps({str(n): 0 for n in range(1024)}))) == 1024
    with pytest.raises(RequestError, match="logit_bias: got .*up to 1024 token ids"):
        read_biases(json.dumps({str(n): 0 for n in range(1025)}))


def test_ramps_of_the_server_give_way() -> None:
    own = {"stop_ramp": TEXT, "think_end_ramp": TEXT}
    stop, end = Ramp(8, 0.25, 4.0), Ramp(8, 0.25, 4.0, (5,), is_once=True)
    assert read_ramps({}, own, 5, True) == (stop, end)
    assert read_ramps({"stop_ramp": "", "think_end_ramp": ""}, own, 5, True) == ()
    # where they mean nothing, defaults are left out and fields are refused
    assert read_ramps({"ignore_eos": True}, own, None, True) == ()
    assert read_ramps({}, own, 5, False) == (stop,)
    with pytest.raises(RequestError, match="think_end_ramp: .*ended thinking"):
        read_ramps({"think_end_ramp": TEXT}, NONE, 5, False)
    with pytest.raises(UnsupportedError, match="think_end_ramp: .*no </think> token"):
        read_ramps({"think_end_ramp": TEXT}, NONE, None, True)


def test_ramps_of_the_server_are_checked_at_its_start() -> None:
    def config(text: str) -> dict[str, Any]:
        return {"parameters": {"stop_ramp": {"string_value": text}, "model": {"string_value": "."}}}

    assert read_settings(config(TEXT), {}).stop_ramp == TEXT
    with pytest.raises(ConfigError, match=r"stop_ramp.*start, slope and most"):
        read_settings(config('{"start": 1}'), {})
