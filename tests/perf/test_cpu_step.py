"""What the measurement of a CPU step refuses before it makes a model."""

from pathlib import Path
from typing import Any

import pytest

from blockdiff.errors import ConfigError
from blockdiff.kernel_choice import INTERPRET
from perf import cpu_step


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": "33"}, "must be multiples of 32"),
        ({"rows": "32," + "9" * 18 + "68"}, "must be multiples of 32, 32 to "),
        ({"kernels": "bogus"}, "no such implementation"),
        ({"kernels": "triton"}, "they need a GPU"),
        ({"kernels": "reference"}, "what they are compared with"),
        ({"csv_file": "/nowhere/x.csv"}, "must be a file in a folder that exists"),
        ({"csv_file": str(Path(__file__).parent)}, "must be a file in a folder that exists"),
    ],
)
def test_what_makes_no_sense_is_refused(
    given: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INTERPRET, "0")
    monkeypatch.delattr(cpu_step, "random_model")
    fields: dict[str, Any] = {"rows": "32", "repeats": 1, "threads": 1, "csv_file": None}
    with pytest.raises(ConfigError, match=said):
        cpu_step.run(**{**fields, "kernels": "auto", **given})
