# SPDX-License-Identifier: Apache-2.0
"""What tests of lowerings share. Inputs do not depend on which tests ran before."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import jax
import numpy as np
import pytest
import torch
from torchtpu_core.lowering import layout, mxu


@pytest.fixture(autouse=True)
def _generators_start_anew(request: pytest.FixtureRequest) -> None:
    for value in vars(request.module).values():
        if isinstance(value, torch.Generator):
            value.manual_seed(0)
        elif isinstance(value, np.random.Generator):
            value.bit_generator.state = type(value.bit_generator)(0).state


@pytest.fixture
def lowering_of() -> Callable[[ModuleType, str], Callable[..., jax.Array]]:
    """The function of a module's row for an overload."""
    return lambda module, overload: next(
        row.function for row in module.TABLE if row.overload == f"aten::{overload}"
    )


@pytest.fixture
def both() -> Callable[..., tuple[str, list]]:
    """Of a function and its arguments, the program for a TPU and the results of both forms."""
    return _both


def _both(function: Callable[..., jax.Array], *arguments: np.ndarray) -> tuple[str, list]:
    def remembered(*given: jax.Array) -> jax.Array:
        with layout.remembering():
            return function(*given)

    results = [jax.jit(lambda *a: remembered(*a))(*arguments)]
    with mxu.for_platform("tpu"):
        text = str(jax.make_jaxpr(remembered)(*arguments))
        results.append(jax.jit(remembered)(*arguments))
    return text, results
