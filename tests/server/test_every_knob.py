"""Every field shows its effect: real gRPC, the demo model, one row of ``knobs`` for each field.

A row asks twice, without and with the field, and looks at both answers.
"""

import pytest

from blockdiff.embedded import TritonServer
from blockdiff.serving.fields import FIELDS

from .calls import stream_all
from .knobs import KNOBS
from .knobs.base import Answer, Knob

pytestmark = pytest.mark.server


@pytest.mark.parametrize("knob", KNOBS, ids=lambda knob: knob.field)
def test_knob_shows_its_effect(demo: TritonServer, knob: Knob) -> None:
    without, with_it = (
        Answer(stream_all(demo, {k: v for k, v in values.items() if v != ""}))
        for values in (knob.base, {**knob.base, **knob.given})
    )
    assert without.errors == []
    assert knob.shows(without, with_it), (knob.field, without.parts, with_it.parts, with_it.errors)


def test_every_field_has_a_knob() -> None:
    missing = {field.name for field in FIELDS if not field.is_refused} - {k.field for k in KNOBS}
    assert not missing, "add a row to tests/server/knobs"
