# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of the pages run as they stand, in order, each page in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
    ROOT / "docs" / "how-to" / "simulate-the-network.md",
    ROOT / "docs" / "how-to" / "eager-modes.md",
    ROOT / "docs" / "how-to" / "find-a-mistake.md",
    ROOT / "docs" / "how-to" / "write-a-kernel.md",
    ROOT / "docs" / "how-to" / "exchange-tensors.md",
]


def script_of(page: Path) -> str:
    """The Python blocks of a page, one after another, on the lines they have in the page."""
    text = page.read_text(encoding="utf-8")
    script, line = "", 0
    for match in BLOCK.finditer(text):
        start = text.count("\n", 0, match.start(1))
        script += "\n" * (start - line) + match.group(1)
        line = start + match.group(1).count("\n")
    return script


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_blocks_of_page_run(page: Path, tmp_path: Path) -> None:
    script = tmp_path / f"{page.stem}.py"
    script.write_text(script_of(page))
    assert script.read_text().strip()
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_script_of_keeps_the_line_numbers_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\na = 1\n```\ntext\n```python\nb = 2\n```\n")
    assert script_of(page).splitlines() == ["", "", "", "a = 1", "", "", "", "b = 2"]
