# SPDX-License-Identifier: Apache-2.0
"""Conditions that a program's lowerings require."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from torchtpu_core.lowering import checks


def test_failed_for_conditions_of_equal_and_other_sizes_tells_each() -> None:
    """Conditions of one size are reduced together, whatever their shapes, in their own places."""
    conditions = [
        np.ones((2, 3), bool),
        np.array([True, True, False, True, True, True]),
        np.ones((0, 4), bool),
        np.array(False),
        np.array([[True]]),
        np.zeros((3, 2), bool),
    ]
    flags = checks.failed([jnp.asarray(c) for c in conditions])
    np.testing.assert_array_equal(flags, [not c.all() for c in conditions])
