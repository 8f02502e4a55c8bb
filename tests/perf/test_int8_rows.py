"""What the measurement of int8 activations refuses, and what it prints."""

import pytest

from blockdiff.errors import ConfigError
from perf import int8_rows


@pytest.mark.parametrize("rows", ["0", "x", "8,99999"])
def test_rows_that_make_no_sense_are_refused(rows: str) -> None:
    with pytest.raises(ConfigError, match="rows"):
        int8_rows.run(rows, 1, 1)


def test_a_processor_without_the_instructions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_rows, "is_fast", lambda: False)
    with pytest.raises(ConfigError, match="no AVX-512 VNNI"):
        int8_rows.run("8", 1, 1)


def test_a_line_for_each_weight_and_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(int8_rows, "PROJECTIONS", ((64, 32),))
    monkeypatch.setattr(int8_rows, "EXPERTS", ((4, 2, 16, 32),))
    monkeypatch.setattr(int8_rows, "is_fast", lambda: True)
    int8_rows.run("1,8", 1, 1)
    out = capsys.readouterr().out
    assert out.count("64 x 32") == out.count("4 experts of 16 x 32, 2 chosen") == 2
