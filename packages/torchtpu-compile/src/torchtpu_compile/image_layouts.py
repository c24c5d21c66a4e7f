# SPDX-License-Identifier: Apache-2.0
"""Which results of compiled code have their channels last: those of eager mode.

Tracing takes the layout of a result from PyTorch's fake kernels. For a device that PyTorch does
not know they state contiguous results where CPU, and eager mode on the device, keep channels
last (`torchtpu_core.lowering.memory_formats`). On tensors of other devices nothing changes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torchtpu_core.lowering import memory_formats

#: PyTorch's meta kernel is right, and its fake kernel makes the results contiguous.
_STATED = torch.ops.aten.convolution_backward.default


@functools.cache
def _names() -> dict[Any, str]:
    """The overloads with a rule that PyTorch traces, and their full names."""
    ops = {
        name: getattr(torch.ops.aten, name.removeprefix("aten::")) for name in memory_formats.RULES
    }
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return {op.default: name for name, op in ops.items() if has_kernel(name, "Meta")}


def _results(op: Any, args: Sequence[Any]) -> Sequence[torch.Tensor | None]:
    if op is _STATED:
        return op(*args)
    return memory_formats.results(_names()[op], args)


def _fake(mode: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    """The results of an op on fake tensors of the device, laid out as in eager mode.

    PyTorch's own kernel runs too: it checks sizes, which fixes those that must be equal.
    """
    from torch._subclasses.fake_impls import op_implementations_dict
    from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

    device = getattr(args[0], "fake_device", None)
    if kwargs or device is None or device.type != "tpu":
        return NotImplemented
    if op in op_implementations_dict:
        op_implementations_dict[op](mode, op, *args)
    with in_kernel_invocation_manager(mode):
        results = [t if t is None else FakeTensor(mode, t, device) for t in _results(op, args)]
    return results[0] if len(results) == 1 else tuple(results)


@functools.cache
def register() -> None:
    """Let tracing on the device use the rules; PyTorch asks the first kernel that answers."""
    from torch._subclasses import fake_impls

    served = {*_names(), _STATED}
    fake_impls.op_implementations_checks.insert(0, (served.__contains__, _fake))
