# SPDX-License-Identifier: Apache-2.0
"""Inputs of a test do not depend on which tests ran before it."""

from __future__ import annotations

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def _generators_start_anew(request: pytest.FixtureRequest) -> None:
    for value in vars(request.module).values():
        if isinstance(value, torch.Generator):
            value.manual_seed(0)
        elif isinstance(value, np.random.Generator):
            value.bit_generator.state = type(value.bit_generator)(0).state
