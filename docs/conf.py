# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration: MyST pages, and reference pages generated from the tables."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import generate  # noqa: E402 - found by the line above

generate.write_all(HERE / "generated")

project = "TorchTPU"
author = "The TorchTPU contributors"
copyright = author
release = (HERE.parent / "VERSION").read_text().strip()

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "tests"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"TorchTPU {release}"
