"""What commands share: reading a model with a progress bar, lines of a file, error places.

Knows nothing of any one command's flags.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from blockdiff.errors import ConfigError, RequestError
from blockdiff.models.base import BlockDiffusionModel
from blockdiff.parallel.load import load_shared
from blockdiff.parallel.settings import ParallelSettings
from blockdiff.text import Tokenizer

ALONE = ParallelSettings()


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The checkpoint's tokenizer, if it has one."""
    return Tokenizer.load(folder) if (folder / "tokenizer.json").is_file() else None


def load_with_progress(
    folder: Path, device: str, dtype: str, parallel: ParallelSettings = ALONE
) -> BlockDiffusionModel:
    """The model, with a progress bar on stderr while its tensors are read."""
    with progress_bar("loading") as advance:
        loaded = load_shared(folder, device, dtype, parallel, advance)
    # A family's class takes its own caches, which is narrower than the protocol says.
    return cast(BlockDiffusionModel, loaded)


def read_lines(flag: str, path: Path) -> list[tuple[str, str]]:
    """Non-empty lines of a JSONL file, each with its place for error texts."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{flag}: cannot read {path}: {reason}") from error
    lines = [
        (f"{path} line {number}: ", line)
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    if not lines:
        raise ConfigError(f"{flag}: {path} is empty")
    return lines


@contextmanager
def naming(place: str) -> Iterator[None]:
    """Errors raised inside begin with the place they come from."""
    try:
        yield
    except (ConfigError, RequestError) as error:
        raise type(error)(f"{place}{error}") from error


@contextmanager
def progress_bar(label: str, is_wanted: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr, only where a person looks at it; yields advance(done, total)."""
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    is_shown = is_wanted and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
