"""`tensorrt-lora manifest`: records the settings, or says how they differ from the record."""

from pathlib import Path
from typing import Annotated

import typer

from tensorrt_lora.config.manifest import DEFAULT_MANIFEST, diff_manifest, render_manifest


def manifest(
    write: Annotated[bool, typer.Option("--write", help="Record the settings as they are now.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 and a diff when the record is out of date.")
    ] = False,
    file: Annotated[Path, typer.Option(help="The recorded manifest.")] = DEFAULT_MANIFEST,
) -> None:
    """Record every setting of the engine, or check the record."""
    if write == check:
        raise ValueError("give either --write or --check")
    if write:
        file.write_text(render_manifest(), encoding="utf-8")
        typer.echo(f"wrote {file}")
        return
    diff = diff_manifest(file)
    if diff:
        typer.echo(diff, nl=False)
        typer.echo(f"{file} is out of date: run `make manifest` and commit the change", err=True)
        raise typer.Exit(1)
    typer.echo(f"{file} is up to date")
