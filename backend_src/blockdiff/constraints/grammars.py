"""From a guide to a grammar of llguidance, within limits of size; bad guides end here.

Knows nothing of tokens or of how a grammar is enforced.
"""

import json
from typing import Any

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

from blockdiff.core import Guide, GuideKind
from blockdiff.errors import RequestError

FIELD = "guided_decoding_guide"
MAX_GUIDE_BYTES = 1 << 16
MAX_SCHEMA_VALUES = 3000
MAX_RULES = 1000
# Between the parts of JSON there may be one space, or one line end and what the next line is
# indented by: where any amount is allowed, weak models write nothing else. A schema's own
# "x-guidance" wins.
WHITESPACE = r"(\n {0,64}| )"


def parser_limits() -> LLParserLimits:
    """Most work that a grammar may make when it is built and in every step."""
    return LLParserLimits(
        max_items_in_row=1000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=50_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=40_000,
        verbose_errors=False,
    )


def grammar_text(guide: Guide) -> str:
    """The grammar of ``guide``; RequestError where its form says that there is none."""
    size = len(guide.text.encode(errors="surrogatepass"))
    if size > MAX_GUIDE_BYTES:
        raise RequestError(f"{FIELD}: {size} bytes; at most {MAX_GUIDE_BYTES} are allowed")
    if guide.kind is GuideKind.JSON:
        if guide.text.strip():
            raise RequestError(f"{FIELD}: has no meaning for guides of type json; leave it out")
        return _of_schema({"type": "object"})
    if not guide.text.strip():
        raise RequestError(f"{FIELD}: is empty; a guide of type {guide.kind} needs a text")
    if guide.kind is GuideKind.JSON_SCHEMA:
        return _of_schema(_parse_schema(guide.text))
    if guide.kind is GuideKind.REGEX:
        return str(LLMatcher.grammar_from_regex(guide.text))
    _check_rules(guide.text)
    if guide.kind is GuideKind.TOOL_CALLS:
        return str(LLMatcher.grammar_from_lark(guide.text))
    return _of_rules(guide.text)


def _of_schema(schema: Any) -> str:
    try:
        return str(
            LLMatcher.grammar_from_json_schema(
                json.dumps(schema), {"whitespace_pattern": WHITESPACE}
            )
        )
    except ValueError as error:
        raise refusal(str(error)) from error


def _parse_schema(text: str) -> Any:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{FIELD}: not a JSON schema ({one_line(str(error))})") from error
    if not isinstance(schema, dict | bool):
        raise RequestError(f"{FIELD}: a JSON schema is an object or a truth value")
    level, count = [schema], 1
    while level:
        level = [own for value in level for own in _children(value)]
        count += len(level)
    if count > MAX_SCHEMA_VALUES:
        raise RequestError(
            f"{FIELD}: the schema has {count} values; at most {MAX_SCHEMA_VALUES} are allowed"
        )
    return schema


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _check_rules(text: str) -> None:
    # a rule takes a line of its own in both languages
    rules = text.count("\n") + 1
    if rules > MAX_RULES:
        raise RequestError(f"{FIELD}: {rules} lines; at most {MAX_RULES} are allowed")


def _of_rules(text: str) -> str:
    try:
        lark = any_to_lark(text)
    except Exception as error:  # foreign code that raises what comes
        raise refusal(f"{type(error).__name__}: {error}") from error
    return str(LLMatcher.grammar_from_lark(lark))


def refusal(reason: str) -> RequestError:
    """A grammar that cannot be used."""
    return RequestError(f"{FIELD}: not usable: {one_line(reason)}")


def one_line(text: str) -> str:
    """``text`` as one short line."""
    words = " ".join(text.replace("<non-verbose/>", "").split())
    return words if len(words) <= 200 else words[:200] + "..."
