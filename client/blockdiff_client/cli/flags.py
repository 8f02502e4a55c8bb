"""The generation flags shared by `chat` and `generate`, as one table.

Turns the table into the signature typer reads, so that both commands offer the same fields.
Checks nothing but JSON files and option syntax: the library and the server judge the values.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import typer

from ..errors import InvalidArgument
from ..types import RetryPolicy


class Flag(NamedTuple):
    """One flag: the keyword it fills, its spelling, type, help text and default."""

    name: str
    spelling: str
    kind: Any
    help: str
    default: Any = None


FLAGS: tuple[Flag, ...] = (
    Flag("max_tokens", "--max-tokens", int, "Most tokens to generate."),
    Flag("min_tokens", "--min-tokens", int, "Fewest tokens before the answer may end."),
    Flag("temperature", "--temperature", float, "0 is greedy."),
    Flag("top_k", "--top-k", int, "Keep the K likeliest tokens; 0 is off."),
    Flag("top_p", "--top-p", float, "Keep the likeliest tokens up to this mass; 1 is off."),
    Flag("seed", "--seed", int, "Seed of the random choices."),
    Flag("min_p", "--min-p", float, "Least share of the likeliest token's chance; 0 is off."),
    Flag("repetition_penalty", "--repetition-penalty", float, "1 is off."),
    Flag("presence_penalty", "--presence-penalty", float, "0 is off."),
    Flag("frequency_penalty", "--frequency-penalty", float, "0 is off."),
    Flag("logit_bias", "--logit-bias", str, 'JSON: {"token id": what its logit gets}.'),
    Flag("stop_ramp", "--stop-ramp", str, 'JSON: {"start": 8, "slope": 0.1, "most": 5}.'),
    Flag("think_end_ramp", "--think-end-ramp", str, "The same for </think>."),
    Flag("stop_words", "--stop", list[str], "Stop before this text; may be repeated."),
    Flag("stop_token_ids", "--stop-token-id", list[int], "Stop at this token; may be repeated."),
    Flag(
        "include_stop_str_in_output",
        "--include-stop/--no-include-stop",
        bool,
        "Whether the answer has the text that it stopped at.",
    ),
    Flag("bad_words", "--bad-word", list[str], "Never write this text; may be repeated."),
    Flag("ignore_eos", "--ignore-eos/--no-ignore-eos", bool, "Go on after end-of-sequence."),
    Flag(
        "exclude_input_in_output",
        "--exclude-input-in-output/--include-input-in-output",
        bool,
        "Whether the answer repeats the prompt.",
    ),
    Flag("return_log_probs", "--log-probs/--no-log-probs", bool, "Ask for log-probabilities."),
    Flag("top_logprobs", "--top-log-probs", int, "Ask for the likeliest tokens; up to 20."),
    Flag("return_step_map", "--step-map/--no-step-map", bool, "Ask which step settled a token."),
    Flag("enable_thinking", "--thinking/--no-thinking", bool, "Let the model reason first."),
    Flag("thinking_budget", "--thinking-budget", int, "Most tokens of reasoning."),
    Flag("tools", "--tools", Path, "JSON file with the list of functions the model may call."),
    Flag("tool_choice", "--tool-choice", str, "none, auto, required, or JSON naming a function."),
    Flag("guided_decoding_guide_type", "--guide-type", str, "json, json_schema, regex, ..."),
    Flag("guided_decoding_guide", "--guide", str, "The guide itself."),
    Flag("sampling_parameters", "--sampling-parameters", str, "JSON with any of these fields."),
    Flag("block_length", "--block-length", int, "Tokens per block."),
    Flag("denoise_steps", "--denoise-steps", int, "Fixed steps per block."),
    Flag("threshold", "--threshold", float, "Confidence that settles a token, 0 to 1."),
    Flag(
        "editing_threshold",
        "--editing-threshold",
        float,
        "Confidence that replaces a token.",
    ),
    Flag("algorithm", "--algorithm", str, "Name of the decoding algorithm."),
    Flag("quality", "--quality", str, "fast, balanced or high."),
    Flag("pinned", "--pinned", str, 'Tokens given by place, e.g. {"5": 17}.'),
    Flag("suffix", "--suffix", str, "Text that the answer ends with, behind --gap tokens."),
    Flag("gap", "--gap", int, "Tokens to fill before --suffix."),
    Flag("stream_denoise", "--watch/--no-watch", bool, "Show blocks while they are denoised."),
    Flag("deadline", "--deadline", float, "Seconds for the whole answer."),
    Flag("silence_timeout", "--silence-timeout", float, "Seconds to wait for a block.", 60.0),
    Flag("priority", "--priority", int, "Place in the server's queue; 1 goes first."),
    Flag("running_priority", "--running-priority", int, "Among running requests; 0 goes first."),
    Flag("retries", "--retries", int, "Further tries while the server is away.", 3),
)


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``options`` of a command by every flag of the table."""

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        options = {flag.name: given.pop(flag.name) for flag in FLAGS}
        command(options=options, **given)

    own = inspect.signature(command, eval_str=True).parameters
    parameters = [parameter for name, parameter in own.items() if name != "options"]
    parameters += [_parameter(flag) for flag in FLAGS]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def _parameter(flag: Flag) -> inspect.Parameter:
    option = typer.Option(flag.default, flag.spelling, help=flag.help)
    return inspect.Parameter(
        flag.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=option,
        annotation=flag.kind if flag.default is not None else flag.kind | None,
    )


def request_options(flags: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments for ``Client.stream`` from the flags of the command line."""
    options = {name: value for name, value in flags.items() if value not in (None, [])}
    retries = options.pop("retries", 0)
    if retries < 0:
        raise InvalidArgument(f"--retries: {retries} is not allowed (0 or more)")
    options["retry"] = RetryPolicy(attempts=retries + 1)
    if "tools" in options:
        options["tools"] = read_tools(options["tools"])
    return options


def read_tools(path: Path) -> str:
    """The text of a JSON file that holds a list of tools."""
    try:
        text = path.read_text(encoding="utf-8")
        tools = json.loads(text)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidArgument(f"--tools: cannot read {str(path)!r} ({reason})") from None
    if not isinstance(tools, list):
        raise InvalidArgument(f"--tools: {str(path)!r} does not hold a JSON list")
    return text
