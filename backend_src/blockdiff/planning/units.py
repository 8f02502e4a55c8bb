"""Sizes of memory as people write them. Knows nothing of what needs the memory."""

import re

from blockdiff.errors import ConfigError

GIB = 1 << 30
_UNITS = {
    "GIB": GIB,
    "GB": 10**9,
    "MIB": 1 << 20,
    "MB": 10**6,
    "TIB": 1 << 40,
    "TB": 10**12,
}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]+)")


def parse_size(flag: str, text: str) -> int:
    """Bytes of a size such as 80GiB or 24 GB; a bare number has no meaning here."""
    found = _SIZE.fullmatch(text.strip())
    scale = _UNITS.get(found.group(2).upper()) if found else None
    size = int(float(found.group(1)) * scale) if found and scale else 0
    if size <= 0:
        units = "MB, MiB, GB, GiB, TB or TiB, such as 80GiB"
        raise ConfigError(f"{flag} {text[:60]!r}: must be a size with a unit {units}")
    return size
