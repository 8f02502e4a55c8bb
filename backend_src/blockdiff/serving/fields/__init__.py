"""The one table of every public tensor: names, types, ranges, aliases, and what is refused.

The config.pbtxt files, the request validation and docs/fields.md follow this table (tests compare
them; scripts/write_fields.py writes them). Each neighbour holds the fields of one idea. Knows
nothing of how tensors arrive.
"""

from blockdiff.serving.fields.answer import ANSWER, OUTPUTS
from blockdiff.serving.fields.constraints import (
    CONSTRAINTS,
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORDS,
)
from blockdiff.serving.fields.decoding import DECODING, ELASTIC_QUALITY, QUALITY_THRESHOLDS
from blockdiff.serving.fields.elsewhere import KNOWN_ELSEWHERE
from blockdiff.serving.fields.endings import (
    ENDINGS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_WORD_CHARACTERS,
    MAX_STOP_WORDS,
)
from blockdiff.serving.fields.kinds import MAX_LIST_ITEMS, Field, Kind, Output
from blockdiff.serving.fields.prompt import MAX_MESSAGES, MAX_TOOLS, PROMPT
from blockdiff.serving.fields.sampling import SAMPLING

GROUPS: dict[str, tuple[Field, ...]] = {
    "The prompt": PROMPT,
    "Where it ends": ENDINGS,
    "How tokens are drawn": SAMPLING,
    "How blocks are decided": DECODING,
    "What it must contain": CONSTRAINTS,
    "What is answered": ANSWER,
}
FIELDS: tuple[Field, ...] = tuple(field for group in GROUPS.values() for field in group)

BY_NAME: dict[str, Field] = {field.name: field for field in FIELDS}
CANONICAL: dict[str, str] = {
    spelling: field.name for field in FIELDS for spelling in (field.name, *field.aliases)
}

__all__ = [
    "BY_NAME",
    "CANONICAL",
    "ELASTIC_QUALITY",
    "FIELDS",
    "GROUPS",
    "KNOWN_ELSEWHERE",
    "MAX_LIST_ITEMS",
    "MAX_MESSAGES",
    "MAX_STOP_CHARACTERS",
    "MAX_BAD_WORDS",
    "MAX_BAD_WORD_CHARACTERS",
    "MAX_STOP_WORDS",
    "MAX_STOP_WORD_CHARACTERS",
    "MAX_TOOLS",
    "OUTPUTS",
    "QUALITY_THRESHOLDS",
    "Field",
    "Kind",
    "Output",
]
