"""Rates of devices, with where they come from. Knows nothing of models."""

import re
from dataclasses import dataclass

from blockdiff.errors import ConfigError

MEASURED = "measured copy and bf16 product"
DATA_SHEET = "vendor's data sheet, dense bfloat16, not measured"
GIVEN = "given"


@dataclass(frozen=True)
class Rates:
    """What a device moves and computes."""

    name: str
    bytes_per_second: float
    flops_per_second: float
    source: str

    @property
    def place(self) -> str:
        """For a sentence: on a device, or at rates of which none is known."""
        return f"at the rates {GIVEN}" if self.source == GIVEN else f"on {self.name}"


DEVICES = {
    "h200": Rates("H200", 4.3e12, 790e12, MEASURED),
    "h100": Rates("H100 SXM", 3.35e12, 989e12, DATA_SHEET),
    "a100": Rates("A100 SXM 80 GB", 2.039e12, 312e12, DATA_SHEET),
    "b200": Rates("B200", 8.0e12, 2250e12, DATA_SHEET),
}
_PREFIXES = {"G": 1e9, "T": 1e12, "P": 1e15}
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)\s*([GTP])(B|FLOP)/s")


def find_rates(name: str, bandwidth: str | None, flops: str | None) -> Rates:
    """The rates of a device of the table, or those given instead; ConfigError for others."""
    found = DEVICES.get(name.lower())
    if found is None:
        raise ConfigError(f"--gpu {name[:60]!r}: must be one of {', '.join(DEVICES)}")
    if bandwidth is None and flops is None:
        return found
    if bandwidth is None or flops is None:
        raise ConfigError("--bandwidth, --flops: give both of them, or neither")
    moved = _rate("--bandwidth", bandwidth, "B", "4.3TB/s")
    computed = _rate("--flops", flops, "FLOP", "790TFLOP/s")
    return Rates("given rates", moved, computed, GIVEN)


def _rate(flag: str, text: str, unit: str, example: str) -> float:
    found = _RATE.fullmatch(text.strip())
    value = float(found[1]) * _PREFIXES[found[2]] if found and found[3] == unit else 0.0
    if value <= 0:
        raise ConfigError(f"{flag} {text[:60]!r}: must be a rate such as {example}")
    return value
