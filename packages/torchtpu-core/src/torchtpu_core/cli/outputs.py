# SPDX-License-Identifier: Apache-2.0
"""Files that a command writes at its end: refused at its start where they cannot be written."""

from __future__ import annotations

import os
from pathlib import Path

import typer


def writable(path: Path | None) -> Path | None:
    """The path, for an option's callback.

    Raises:
        typer.BadParameter: its folder is missing or closed, or it is a folder itself.
    """
    if path is None:
        return None
    folder = path.absolute().parent
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder. Give a file, such as {path / 'plan.out'}.")
    if not folder.is_dir():
        raise typer.BadParameter(f"there is no folder {folder}. Make it first, or give another.")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise typer.BadParameter(f"{path} may not be written. Give another file.")
    return path
