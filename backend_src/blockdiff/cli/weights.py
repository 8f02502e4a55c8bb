"""``blockdiff weights``: what a weights folder holds, whether it does, and smaller copies.

Knows flags and tables; the files are read elsewhere, and torch is needed by quantize alone.
"""

import json
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from blockdiff.cli.progress import byte_progress
from blockdiff.cli.quantize import quantize_command
from blockdiff.cli.sizes import counted, size_text
from blockdiff.config import unused_keys
from blockdiff.errors import ConfigError
from blockdiff.weights.groups import group_of
from blockdiff.weights.headers import TensorHeader, read_headers
from blockdiff.weights.manifest import MANIFEST, read_manifest_with_digest, write_manifest
from blockdiff.weights.packed import values_per_word_at
from blockdiff.weights.sums import Group, sum_groups
from blockdiff.weights.verify import Verification, verify

app = typer.Typer(rich_markup_mode=None, add_completion=False)
app.command("quantize")(quantize_command)

# In a file or pipe, lines are as long as the table is.
_WIDE = 200


class Output(str, Enum):
    table = "table"
    json = "json"


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder with weights.")]
Format = Annotated[Output, typer.Option("--format", help="For people or for scripts.")]
Workers = Annotated[
    int | None, typer.Option(min=1, max=256, help="Files read at once; default: by processors.")
]


@app.command("manifest")
def manifest_command(
    folder: Folder,
    source: Annotated[str | None, typer.Option(help="Where the files come from, a URL.")] = None,
    revision: Annotated[str | None, typer.Option(help="Commit or version at the source.")] = None,
    initialised: Annotated[
        str | None, typer.Option(help='How it was made: "trained", "random seed 0", ...')
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a manifest that is there.")
    ] = False,
    workers: Workers = None,
    output: Format = Output.table,
) -> None:
    """Hash every file and write the list, blockdiff-manifest.json, into the folder."""
    if (folder / MANIFEST).exists() and not overwrite:
        raise ConfigError(
            f"{folder / MANIFEST} is there already; check it with: blockdiff weights verify "
            f"{folder}, or replace it with --overwrite"
        )
    with byte_progress("hashing") as advance:
        write_manifest(folder, source, revision, initialised, workers, advance)
    manifest, digest = read_manifest_with_digest(folder)
    if output is Output.json:
        _print_json({"manifest_sha256": digest, **manifest.model_dump()})
        return
    console = _console()
    table = Table("file", Column("bytes", justify="right"), "SHA-256")
    for file in manifest.files:
        table.add_row(file.name, f"{file.size:,}", file.sha256)
    console.print(table)
    console.print(f"{counted(len(manifest.files), 'file')}, {size_text(manifest.total_size)}")
    console.print(f"{MANIFEST}: SHA-256 {digest}")


@app.command("verify")
def verify_command(
    folder: Folder,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an interrupted run has checked.")
    ] = False,
    workers: Workers = None,
    output: Format = Output.table,
) -> None:
    """Check every file against the manifest; exit code 2 names the bad files."""
    with byte_progress("verifying") as advance:
        outcome = verify(folder, workers, advance, resume=not fresh)
    if output is Output.json:
        _print_json(outcome.as_json())
    else:
        _show(outcome)
    outcome.refuse()


@app.command("inspect")
def inspect_command(
    path: Annotated[
        Path, typer.Argument(metavar="DIR", help="Checkpoint folder or one .safetensors file.")
    ],
    tensors: Annotated[
        bool, typer.Option("--tensors", help="List every tensor, not only the parts.")
    ] = False,
    output: Format = Output.table,
) -> None:
    """Show tensors, dtypes, shapes and sizes by part, from the files' headers alone."""
    found = read_headers(path)
    groups = sum_groups(found, values_per_word_at(path))
    if output is Output.json:
        _print_json(_inspection(path, found, groups))
        return
    console = _console()
    if tensors:
        console.print(_tensor_table(found))
    console.print(_group_table(groups))
    console.print(counted(len({tensor.file for tensor in found}), "file"))
    if unused := _unused_keys(path):
        console.print(f"config.json: keys not used: {', '.join(unused)}", markup=False)


def _show(outcome: Verification) -> None:
    console = _console()
    for problem in outcome.problems:
        console.print(Text(f"{problem.kind:10} ", style="bold red") + Text(str(problem)))
    if outcome.resumed_files:
        console.print(f"checked by an interrupted run: {counted(outcome.resumed_files, 'file')}")
    if outcome.is_good:
        console.print(
            f"{counted(outcome.files, 'file')}, {size_text(outcome.total_size)}: "
            "all as the manifest says"
        )
    console.print(f"{MANIFEST}: SHA-256 {outcome.manifest_sha256}")


def _inspection(path: Path, found: list[TensorHeader], groups: list[Group]) -> dict[str, Any]:
    return {
        "path": str(path),
        "files": sorted({tensor.file for tensor in found}),
        "parameters": sum(group.parameters for group in groups),
        "size": sum(tensor.size for tensor in found),
        "unused_config_keys": _unused_keys(path),
        "groups": [asdict(group) for group in groups],
        "tensors": [{**asdict(tensor), "group": group_of(tensor.name)} for tensor in found],
    }


def _unused_keys(path: Path) -> list[str]:
    """Keys of the folder's config that no family's maths uses; none where there is no config."""
    if not (path / "config.json").is_file():
        return []
    try:
        return list(unused_keys(path))
    except ConfigError:
        # Files are shown also where their config is of an unknown family or damaged.
        return []


def _group_table(groups: list[Group]) -> Table:
    table = Table("part", "dtype")
    for title in ("tensors", "parameters", "size"):
        table.add_column(title, justify="right")
    total = sum(group.tensors for group in groups), sum(group.parameters for group in groups)
    for group in groups:
        counts = f"{group.tensors:,}", f"{group.parameters:,}", size_text(group.size)
        table.add_row(group.name, " ".join(group.dtypes), *counts)
    table.add_section()
    size = size_text(sum(group.size for group in groups))
    table.add_row("all", "", f"{total[0]:,}", f"{total[1]:,}", size)
    return table


def _tensor_table(found: list[TensorHeader]) -> Table:
    table = Table("tensor", "dtype", "shape", Column("size", justify="right"), "file")
    for tensor in found:
        shape = " x ".join(str(length) for length in tensor.shape)
        table.add_row(tensor.name, tensor.dtype, shape, size_text(tensor.size), tensor.file)
    return table


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDE)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, indent=1))
