# SPDX-License-Identifier: Apache-2.0
"""Assertions on values of the device, which a script or a library states.

One is a small result of the program it runs in, as an index check is: the host does not wait
for it, and it raises when the host next synchronises (at once in Debug).
"""

from __future__ import annotations

import jax
import torch

from torchtpu_core.lowering import checks
from torchtpu_core.lowering.table import Lowering, composite, native

_UNNAMED = "Expected Tensor with single nonzero value, but got zero"


def _functional_assert(self: jax.Array, assert_msg: str, dep_token: jax.Array) -> jax.Array:
    """`dep_token`, which depends on `self` being true."""
    checks.require(self != 0, RuntimeError, assert_msg)
    return dep_token


def _assert_async(self: torch.Tensor, assert_msg: str = _UNNAMED) -> None:
    """State that `self`, of one element, is not zero.

    Raises:
        RuntimeError: at once if `self` has another number of elements.
    """
    if self.numel() != 1:
        count = "no values" if self.numel() == 0 else "more than one value"
        raise RuntimeError(f"Boolean value of Tensor with {count} is ambiguous")
    torch.ops.aten._functional_assert_async.msg(self, assert_msg, self)


TABLE: tuple[Lowering, ...] = (
    native("aten::_functional_assert_async.msg", _functional_assert),
    composite("aten::_assert_async", _assert_async),
    composite("aten::_assert_async.msg", _assert_async),
)
