# SPDX-License-Identifier: Apache-2.0
"""A kernel that fails while its program runs is named with the user's line."""

from __future__ import annotations

import re
import traceback

import jax
import numpy as np
import pytest
import torch
from torch import Tensor
from torchtpu_core.errors import ProgramFailedError
from torchtpu_kernels.pallas import custom_jax_kernel


def _refuse_negative(x: np.ndarray) -> np.ndarray:
    if x.min() < 0:
        raise ValueError("negative reading")
    return x


@custom_jax_kernel
def sensor(x: jax.Array) -> jax.Array:
    return jax.pure_callback(_refuse_negative, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def measured(x: Tensor) -> Tensor:
    doubled = x * 2
    read = sensor(doubled)
    return read + 1


LINE = rf"test_failing_calls\.py:{measured.__code__.co_firstlineno + 2} in measured"


def test_kernel_that_fails_is_told_with_its_line() -> None:
    x = torch.full((4,), -1.0, device="tpu")
    with pytest.raises(ProgramFailedError, match="negative reading") as raised:
        measured(x).cpu()
    # In the message if it ran later; what fails in the call itself has it in the traceback.
    frames = traceback.extract_tb(raised.tb)
    in_call = any(f.name == "measured" and "sensor" in (f.line or "") for f in frames)
    assert in_call or re.search(LINE, str(raised.value))


def test_kernel_that_fails_in_a_compiled_graph_is_told_with_its_line() -> None:
    compiled = torch.compile(measured, backend="tpu")
    x = torch.full((4,), -1.0, device="tpu")
    for _ in range(2):  # the first call of a graph takes another way in
        with pytest.raises(ProgramFailedError, match=f"(?s)negative reading.*jax_call.*{LINE}"):
            compiled(x).cpu()
    assert compiled(-x).tolist() == [3.0] * 4


def test_kernel_that_fails_beside_open_sizes_is_told_with_its_line() -> None:
    compiled = torch.compile(lambda x, y: measured(x).sum() + y.sum(), backend="tpu")
    x, y = torch.full((4,), -1.0, device="tpu"), torch.ones(7, device="tpu")
    torch._dynamo.mark_dynamic(y, 0)
    with pytest.raises(ProgramFailedError, match=f"(?s)negative reading.*jax_call.*{LINE}"):
        compiled(x, y).item()
    assert compiled(-x, y).item() == 19.0


def test_kernel_that_fails_in_a_graph_of_gradients_is_told_with_its_line() -> None:
    def loss(x: Tensor) -> Tensor:
        return (x * sensor(x.detach())).sum()

    compiled = torch.compile(loss, backend="tpu")
    x = torch.full((4,), -1.0, device="tpu", requires_grad=True)
    line = loss.__code__.co_firstlineno + 1
    for _ in range(2):
        with pytest.raises(ProgramFailedError, match=rf"test_failing_calls\.py:{line} in loss"):
            compiled(x)
