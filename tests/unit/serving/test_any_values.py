"""Any values of any fields, by every way in: a request or one clear line, and soon."""

import json
import time
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from blockdiff.engine import EngineConfig
from blockdiff.errors import BlockdiffError
from blockdiff.model_info import ModelInfo
from blockdiff.serving.errors import one_line
from blockdiff.serving.fields import CANONICAL, FIELDS, Field, Kind
from blockdiff.serving.model_facts import ModelFacts, facts_file, write_facts
from blockdiff.serving.settings import Settings

Build = Callable[..., Any]
MODEL = ModelInfo("llada2_moe", 500, 8, 3, (2,), 256)
NAMES = st.sampled_from(sorted(CANONICAL))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 40),
    st.floats(),
    st.floats(0, 1),
    st.text(max_size=8),
    st.sampled_from(["json", "regex", "auto", "fast", "{}", "[]", '{"a": [', "low_confidence"]),
)
ANY = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def inside(field: Field) -> st.SearchStrategy[Any]:
    """Tensors of the field's own type; Triton lets no other pass."""
    texts = st.text(max_size=12) | ANY.map(json.dumps)
    one = {
        Kind.STRING: texts | st.binary(max_size=6),
        Kind.BOOL: st.booleans(),
        Kind.FP32: st.floats(width=32),
        Kind.INT32: st.integers(-3, 60) | st.integers(-(2**31), 2**31 - 1),
        Kind.UINT64: st.integers(0, 2**64 - 1),
    }[field.kind]
    return st.lists(one, min_size=1, max_size=3) if field.is_list else one


TENSORS = st.lists(st.sampled_from(FIELDS), max_size=3, unique=True).flatmap(
    lambda fields: st.fixed_dictionaries({field.name: inside(field) for field in fields})
)
SOME = st.dictionaries(NAMES, ANY, max_size=2)


@examples(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(TENSORS, SOME, SOME)
@example({"text_input": "x"}, {"sampling_parameters": {}}, {})
@example({"text_input": "x"}, {"pinned": {"9" * 5000: 1}}, {})
@example({"text_input": "x", "stop_words": ["a" * 2000]}, {}, {})
@example({"text_input": "x"}, {"stop_words": [str(n) for n in range(300)]}, {})
@example({"text_input": "x"}, {"messages": [{"role": "user", "content": "a"}] * 400}, {})
def test_a_request_or_one_clear_line(
    build: Build,
    settings: Settings,
    tensors: dict[str, Any],
    inner: dict[str, Any],
    outer: dict[str, Any],
) -> None:
    write_facts(facts_file(settings.relay_socket), ModelFacts(MODEL, EngineConfig(), 256))
    if inner:
        tensors = {**tensors, "sampling_parameters": json.dumps(inner)}
    began = time.process_time()
    try:
        ids, spec = build(outer, **{"text_input": "hi", **tensors})
        assert ids and spec.engine_request(1, tuple(ids), None).max_tokens >= 1
    except BlockdiffError as error:
        text = str(error)
        assert text and text == one_line(text) and len(text) < 700, text
        # whom it is about comes first
        named = text.split(":")[0].split(",")[0]
        for mark in ("parameter ", '"', "."):
            named = named.replace(mark, " " if mark == "." else "")
        known = {name.split("[")[0] for name in named.split()}
        assert known & set(CANONICAL), text
    assert time.process_time() - began < 2, "bounded"
