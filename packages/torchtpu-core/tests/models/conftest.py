# SPDX-License-Identifier: Apache-2.0
"""Every test of a model starts in Strict mode, on device 0, with known seeds."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _fresh_state(strict_on_device_0: None) -> None:
    """The shared start, for all tests of this folder."""
