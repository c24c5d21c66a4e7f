# SPDX-License-Identifier: Apache-2.0
"""Ops called with a float that changes, such as a scheduled learning rate.

AOTAutograd makes a 0-d tensor of such a float where it meets a product, sum, difference or
quotient, and otherwise has the graph compiled anew for each value. So an op that takes it in
another place is taken apart into these; with plain numbers it stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _scaled(sign: int) -> Callable[..., Any]:
    def function(x: Tensor, y: Any, *, alpha: Any = 1) -> Any:
        if not isinstance(alpha, torch.SymFloat):
            return NotImplemented
        return x + y * alpha if sign > 0 else x - y * alpha

    return function


def _scaled_each(sign: int) -> Callable[..., Any]:
    one = _scaled(sign)

    def function(xs: Sequence[Tensor], ys: Sequence[Tensor], *, alpha: Any = 1) -> Any:
        if not isinstance(alpha, torch.SymFloat):
            return NotImplemented
        return [one(x, y, alpha=alpha) for x, y in zip(xs, ys, strict=True)]

    return function


def _each(one: Callable[[Tensor, Any], Tensor]) -> Callable[..., Any]:
    def function(xs: Sequence[Tensor], scalar: Any) -> Any:
        if not isinstance(scalar, torch.SymFloat):
            return NotImplemented
        return [one(x, scalar) for x in xs]

    return function


def _third(one: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def function(x: Tensor, y: Tensor, z: Tensor, *, value: Any = 1) -> Any:
        return x + one(y, z) * value if isinstance(value, torch.SymFloat) else NotImplemented

    return function


def _third_each(one: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    def function(
        xs: Sequence[Tensor], ys: Sequence[Tensor], zs: Sequence[Tensor], value: Any = 1
    ) -> Any:
        if not isinstance(value, torch.SymFloat):
            return NotImplemented
        return [x + one(y, z) * value for x, y, z in zip(xs, ys, zs, strict=True)]

    return function


#: For AOTAutograd.
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten.add.Tensor: _scaled(1),
    aten.sub.Tensor: _scaled(-1),
    aten.addcmul.default: _third(torch.mul),
    aten.addcdiv.default: _third(torch.div),
    aten._foreach_add.List: _scaled_each(1),
    aten._foreach_sub.List: _scaled_each(-1),
    aten._foreach_add.Scalar: _each(torch.add),
    aten._foreach_sub.Scalar: _each(torch.sub),
    aten._foreach_mul.Scalar: _each(torch.mul),
    aten._foreach_div.Scalar: _each(torch.div),
    aten._foreach_addcmul.Scalar: _third_each(torch.mul),
    aten._foreach_addcdiv.Scalar: _third_each(torch.div),
}
