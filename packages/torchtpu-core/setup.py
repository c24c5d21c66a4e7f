# SPDX-License-Identifier: Apache-2.0
"""Build `torchtpu_core._C` from `csrc/`; all metadata is in `pyproject.toml`."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from compiled_part import build  # noqa: E402 - beside this file, where setuptools does not look

build("torchtpu-core", HERE)
