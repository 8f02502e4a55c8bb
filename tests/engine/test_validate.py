"""Every field is honoured or refused; each refusal names field, value and what is allowed."""

from typing import Any

import pytest

from blockdiff.core import Mode, Request
from blockdiff.engine import Engine, EngineConfig
from blockdiff.errors import ConfigError, RequestError, UnsupportedError

from .fakes import EOS, MASK, VOCAB, HashModel, LetterCodec, info, request

NAN = float("nan")


def refusal(wanted: Request, engine: Engine | None = None) -> str:
    engine = engine or Engine(HashModel(), EngineConfig(max_context=64, max_output_tokens=50))
    with pytest.raises(RequestError) as caught:
        engine.validate(wanted)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"prompt": []}, ["input_ids", "empty"]),
        ({"prompt": [1, VOCAB]}, ["input_ids", str(VOCAB), f"0 to {VOCAB - 1}"]),
        ({"prompt": [-1]}, ["input_ids", "-1"]),
        ({"max_tokens": 0}, ["max_tokens", "0", "1 to 50"]),
        ({"max_tokens": -3}, ["max_tokens", "-3"]),
        ({"max_tokens": 51}, ["max_tokens", "51", "1 to 50"]),
        ({"prompt": [1] * 60, "max_tokens": 5}, ["max_tokens", "60", "5", "65", "64"]),
        ({"min_tokens": 9, "max_tokens": 8}, ["min_tokens", "9", "0 to 8"]),
        ({"eos_ids": (VOCAB,)}, ["eos_ids", str(VOCAB)]),
        ({"eos_ids": (MASK,)}, ["eos_ids", str(MASK), "mask"]),
        ({"eos_ids": tuple(range(17))}, ["eos_ids", "17", "16"]),
        ({"stop_strings": ("a",)}, ["stop_strings", "tokenizer"]),
        ({"stop_strings": ("",)}, ["stop_strings", "empty"]),
        ({"temperature": NAN}, ["temperature", "nan", "0.0 to"]),
        ({"temperature": -0.1}, ["temperature", "-0.1"]),
        ({"temperature": float("inf")}, ["temperature", "inf"]),
        ({"top_k": -1}, ["top_k", "-1"]),
        ({"top_p": 0.0}, ["top_p", "0.0"]),
        ({"top_p": 1.1}, ["top_p", "1.1"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"seed": 2**64}, ["seed", str(2**64)]),
        ({"algorithm": "entropy"}, ["algorithm", "entropy", "low_confidence"]),
        ({"block_length": 3}, ["block_length", "3", "2, 4, 8"]),
        ({"block_length": 0}, ["block_length", "0"]),
        ({"denoise_steps": 0}, ["denoise_steps", "0", "1 to 4"]),
        ({"denoise_steps": 5}, ["denoise_steps", "5", "1 to 4"]),
        ({"threshold": 1.5}, ["threshold", "1.5", "0.0 to 1.0"]),
        ({"threshold": NAN}, ["threshold", "nan"]),
        ({"mode": Mode.AUTOREGRESSIVE, "threshold": 0.5}, ["threshold", "autoregressive"]),
        ({"mode": Mode.AUTOREGRESSIVE, "denoise_steps": 2}, ["denoise_steps", "autoregressive"]),
        ({"mode": Mode.AUTOREGRESSIVE, "entropy_bound": 0.5}, ["entropy_bound", "autoregressive"]),
    ],
    ids=str,
)
def test_refusals_name_field_value_and_range(fields: dict[str, Any], parts: list[str]) -> None:
    text = refusal(request(**fields))
    assert text.startswith(parts[0]) and all(part in text for part in parts)


def test_what_a_model_cannot_do_is_unsupported() -> None:
    no_single = Engine(HashModel(info(supports_autoregressive=False)))
    with pytest.raises(UnsupportedError, match="mode: fake cannot"):
        no_single.validate(request(mode=Mode.AUTOREGRESSIVE))
    no_mask = Engine(HashModel(info(mask_token_id=-1)))
    with pytest.raises(UnsupportedError, match="no mask token"):
        no_mask.validate(request())
    no_mask.validate(request(mode=Mode.AUTOREGRESSIVE))
    any_length = Engine(HashModel(info(block_lengths_allowed=None)))
    any_length.validate(request(block_length=37))
    assert "1 to 256" in refusal(request(block_length=300), any_length)


def test_the_edges_of_what_is_allowed_are_allowed() -> None:
    engine = Engine(HashModel(), EngineConfig(max_context=64), LetterCodec())
    for fields in (
        {"prompt": [0, VOCAB - 1, MASK] * 20, "max_tokens": 4},
        {"max_tokens": 1, "min_tokens": 1},
        {"temperature": 0.0, "top_p": 1e-9, "top_k": 0, "seed": 2**64 - 1},
        {"threshold": 0.0},
        {"threshold": 1.0, "denoise_steps": 4},
        {"eos_ids": (), "stop_strings": ("a", "b")},
        {"eos_ids": (EOS, 1, 2)},
    ):
        engine.validate(request(**fields))


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_slots": 0}, "max_slots"),
        ({"prefill_token_budget": 0}, "prefill_token_budget"),
        ({"max_context": -1}, "max_context"),
        ({"max_context": 257}, "max_context"),
        ({"num_threads": 0}, "num_threads"),
    ],
)
def test_bad_engine_settings_are_refused(fields: dict[str, int], name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: "):
        Engine(HashModel(), EngineConfig(**fields))
