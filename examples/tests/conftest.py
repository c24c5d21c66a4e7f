# SPDX-License-Identifier: Apache-2.0
"""The examples are scripts in a folder, not a package: tests import them from there."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
