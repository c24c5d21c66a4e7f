# SPDX-License-Identifier: Apache-2.0
"""The functions that C++ calls by name."""

from __future__ import annotations

import pytest
from torchtpu_core.runtime import bridge


@pytest.mark.parametrize("name", bridge._HEAVY)
def test_function_that_cpp_calls_by_name_exists(name):
    assert callable(getattr(bridge, name))
