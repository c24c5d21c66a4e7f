# SPDX-License-Identifier: Apache-2.0
"""Shapes under PyTorch's fake tensors of calls that its meta kernels refuse.

Dynamo and AOTAutograd ask a meta kernel what a call gives. One that checks what a GPU needs
refuses calls that have a lowering here; the rules below answer first, for this device alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses import fake_impls


def register() -> None:
    """Tell PyTorch the rules, once for a process."""
    for overload, rule in ((torch.ops.aten._grouped_mm.default, _grouped_mm),):
        if not fake_impls._is_op_registered_to_fake_rule(overload):
            fake_impls.register_op_impl(overload)(rule)


def _grouped_mm(
    fake_mode: Any,
    func: Any,
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Products of groups, of any floating dtype: `lowering/matmul.py` says the shapes."""
    if self.device.type != "tpu":
        return NotImplemented
    torch._check(
        self.dim() in (2, 3) and mat2.dim() in (2, 3),
        lambda: f"Multiplicands must be 2D or 3D but got {self.dim()}D and {mat2.dim()}D",
    )
    if self.dim() == 3 or mat2.dim() == 3:
        torch._check(
            self.shape[-1] == mat2.shape[-2],
            lambda: "contraction dimension of mat_a and mat_b must match",
        )
    groups: tuple[Any, ...] = ()
    if self.dim() == mat2.dim() == 3:
        groups = (self.shape[0],)
    elif self.dim() == mat2.dim() == 2 and offs is not None:
        groups = (offs.shape[0],)
    sizes = (*groups, self.shape[-2], mat2.shape[-1])
    with fake_mode:
        return self.new_empty(sizes, dtype=out_dtype or self.dtype)
