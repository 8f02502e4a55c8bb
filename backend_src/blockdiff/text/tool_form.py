"""Which form of tool calls a checkpoint's model writes, by its files.

Knows the files of a checkpoint; knows nothing of the forms themselves.
"""

from pathlib import Path

from blockdiff.errors import ConfigError
from blockdiff.text.special import read_json
from blockdiff.text.tokenizer import Tokenizer, template_text
from blockdiff.text.tool_calls import FORMS, DetectedForm, detect_form


def find_tool_form(
    model_dir: Path, tokenizer: Tokenizer, wanted: str | None = None
) -> DetectedForm:
    """The form ``wanted``, else the one that the checkpoint's files point to.

    Raises ConfigError for a name that is no form.
    """
    if wanted is not None:
        if wanted not in FORMS:
            raise ConfigError(f"tool_form: got {wanted!r}, allowed {' or '.join(FORMS)}")
        return DetectedForm(FORMS[wanted], "as set")
    model_type = read_json(model_dir / "config.json").get("model_type")
    return detect_form(
        template_text(model_dir),
        lambda token: tokenizer.id_of(token) is not None,
        model_type if isinstance(model_type, str) else None,
    )
