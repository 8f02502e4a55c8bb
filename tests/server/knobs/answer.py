"""Knobs of what responses hold."""

import json

from .base import RAW, SORT, Answer, Knob


def shows_canvases(plain: Answer, watched: Answer) -> bool:
    """Every preview as a canvas in its order; texts and counts as without them."""
    canvases = watched.canvases
    assert plain.canvases == []
    assert len(canvases) == len(watched.parts), "every response has one"
    assert [canvas["block"] for canvas in canvases] == sorted(c["block"] for c in canvases)
    for part, canvas in zip(watched.parts, canvases, strict=True):
        assert len(canvas["tokens"]) == 8
        if not canvas["is_finished"]:
            assert (part["num_output_tokens"], part["denoise_steps_used"]) == (0, 0)
            assert part["text_output"] == "" and not part["is_final"]
    masked = [sum(p["state"] == "masked" for p in canvas["tokens"]) for canvas in canvases]
    assert all(
        canvas["is_finished"] == (left == 0) for canvas, left in zip(canvases, masked, strict=True)
    )
    # how many arrive depends on how fast they are taken, but some of 20 do
    assert len(canvases) > 5
    same = ("text_output", "num_output_tokens", "denoise_steps_used")
    return all(plain.joined(name) == watched.joined(name) for name in same)


ANSWER: tuple[Knob, ...] = (
    Knob(
        "stream",
        {**SORT, "stream": False},
        {"stream": True, "block_length": 4},
        lambda a, b: len(a.parts) == 1 < len(b.parts),
    ),
    Knob(
        "stream_denoise",
        {**SORT, "denoise_steps": 4, "block_length": 8, "ignore_eos": True},
        {"stream_denoise": True},
        lambda a, b: shows_canvases(a, b),
    ),
    Knob("running_priority", SORT, {"running_priority": 9}, lambda a, b: a.text == b.text),
    Knob(
        "exclude_input_in_output",
        RAW,
        {"exclude_input_in_output": False},
        lambda a, b: b.text == "sort 1 2 3" + a.text,
    ),
    Knob(
        "return_log_probs",
        SORT,
        {"return_log_probs": True},
        lambda a, b: (
            "output_log_probs" not in a.last
            and [len(p["output_log_probs"]) for p in b.parts]
            == [p["num_output_tokens"] for p in b.parts]
        ),
    ),
    Knob(
        "return_num_input_tokens",
        SORT,
        {"return_num_input_tokens": False},
        lambda a, b: a.last["num_input_tokens"] > 0 and "num_input_tokens" not in b.last,
    ),
    Knob(
        "return_num_output_tokens",
        SORT,
        {"return_num_output_tokens": False},
        lambda a, b: "num_output_tokens" not in b.last,
    ),
    Knob(
        "sampling_parameters",
        SORT,
        {"sampling_parameters": '{"max_tokens": 2, "stop_words": ["31"]}'},
        lambda a, b: b.last["stop_reason"] == "31",  # the tensor's max_tokens counts
    ),
    Knob(
        "top_logprobs",
        SORT,
        {"top_logprobs": 3},
        lambda a, b: (
            not a.last.get("top_log_probs")
            and all(len(top) == 3 for part in b.parts for top in json.loads(part["top_log_probs"]))
        ),
    ),
    Knob(
        "return_step_map",
        {**SORT, "denoise_steps": 4, "block_length": 8},
        {"return_step_map": True},
        lambda a, b: {step for part in b.parts for step in part["step_map"]} == {0, 1, 2, 3},
    ),
)
