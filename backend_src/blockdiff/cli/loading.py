"""What commands share: reading a model with a progress bar, lines of a file, error places.

Knows nothing of any one command's flags.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from blockdiff.checkpoint.load import LoadedModel
from blockdiff.cli.progress import byte_progress
from blockdiff.config import load_config
from blockdiff.errors import ConfigError, RequestError
from blockdiff.models.base import BlockDiffusionModel
from blockdiff.models.trunk import LanguageModel
from blockdiff.parallel.load import load_shared
from blockdiff.parallel.model import ParallelModel
from blockdiff.parallel.settings import ParallelSettings
from blockdiff.text import Tokenizer
from blockdiff.text.fit import require_fit

ALONE = ParallelSettings()


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The checkpoint's tokenizer, if it has one; one of another model is refused."""
    if not (folder / "tokenizer.json").is_file():
        return None
    tokenizer = Tokenizer.load(folder)
    require_fit(tokenizer, folder, load_config(folder))
    return tokenizer


def load_with_progress(
    folder: Path, device: str, dtype: str, parallel: ParallelSettings = ALONE
) -> BlockDiffusionModel:
    """As ``read_model``, for the engine."""
    # A family's class takes its own caches, which is narrower than the protocol says.
    return cast(BlockDiffusionModel, read_model(folder, device, dtype, parallel))


def read_model(
    folder: Path, device: str, dtype: str, parallel: ParallelSettings = ALONE
) -> LanguageModel | ParallelModel:
    """The model, with a progress bar on stderr while it is read and then what that took.

    What was passed over (unknown keys, unused tensors) is said wherever stderr goes.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)

    def tell(loaded: LoadedModel) -> None:
        report = [str(loaded.report)] if console.is_terminal else []
        for line in (*loaded.notes, *report):
            console.print(f"blockdiff: {line}", markup=False)

    with byte_progress("loading") as advance:
        return load_shared(folder, device, dtype, parallel, advance, tell)


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
