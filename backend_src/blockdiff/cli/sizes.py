"""Numbers as sentences of commands have them. Knows nothing of what is counted."""


def size_text(count: int) -> str:
    """Bytes in the largest decimal unit that gives at least 1."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count} B"


def counted(number: int, what: str) -> str:
    """1 file, 2 files."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")
