# SPDX-License-Identifier: Apache-2.0
"""Python numbers in functions that `torch.func` transforms inside a compiled function.

PyTorch makes a 0-d tensor of such a number. A transform wraps that tensor, and PyTorch cannot turn
the wrapped number into an argument of a form in Python; `vmap` casts it, of which the tracer
keeps the number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph

aten = torch.ops.aten
_KEY = torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode


@functools.cache
def register() -> None:
    """Let sums and differences on the device, which have forms in Python, keep numbers as such."""
    aten.add.Tensor.py_impl(_KEY)(_with_numbers(aten.add.Tensor, _sum))
    aten.sub.Tensor.py_impl(_KEY)(_with_numbers(aten.sub.Tensor, _difference))


def _with_numbers(op: Any, form: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x: Any, y: Any, *, alpha: Any = 1) -> Tensor:
        tensors = [operand for operand in (x, y) if isinstance(operand, Tensor)]
        if len(tensors) == 1 and tensors[0].device.type == "tpu":
            return form(x, y, alpha)
        result: Tensor = op._op_dk(_KEY, x, y, alpha=alpha)
        return result

    return run


def _scaled(value: Any, alpha: Any) -> Any:
    return value if isinstance(alpha, int) and alpha == 1 else value * alpha


def _sum(x: Any, y: Any, alpha: Any) -> Tensor:
    result: Tensor
    if isinstance(x, Tensor):
        result = aten.add.Scalar(x, _scaled(y, alpha))
    else:
        result = aten.add.Scalar(_scaled(y, alpha), x)
    return result


def _difference(x: Any, y: Any, alpha: Any) -> Tensor:
    result: Tensor
    if isinstance(x, Tensor):
        result = aten.sub.Scalar(x, _scaled(y, alpha))
    else:
        result = aten.rsub.Scalar(_scaled(y, alpha), x)
    return result


def make_tensors(graph: Graph) -> None:
    """Let the casts of numbers be of tensors again."""
    for node in graph.nodes:
        if node.target is aten._to_copy.default and isinstance(node.args[0], (bool, int, float)):
            value = node.meta["val"]
            node.target = aten.full.default
            node.args = ([], node.args[0])
            node.kwargs = {"dtype": value.dtype, "device": value.device}
