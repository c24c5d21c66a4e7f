# SPDX-License-Identifier: Apache-2.0
"""Which results of compiled code have their channels last: those of eager mode.

Tracing takes the layout of a result from PyTorch's fake kernels. For a device that PyTorch does
not know they state contiguous results where CPU, and eager mode on the device, keep channels
last (`torchtpu_core.lowering.memory_formats`). On tensors of other devices nothing changes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._decomp import decomposition_table, meta_table
from torchtpu_core.lowering import memory_formats
from torchtpu_core.lowering.table import operator

from torchtpu_compile.resampling import has_open_sizes

#: PyTorch's meta kernel is right, and its fake kernel makes the results contiguous.
_STATED = torch.ops.aten.convolution_backward.default


@functools.cache
def _names() -> dict[Any, str]:
    """The overloads with a rule that PyTorch traces, and their full names."""
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return {operator(name): name for name in memory_formats.RULES if has_kernel(name, "Meta")}


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

    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, FakeTensor)]
    devices = {t.fake_device for t in tensors if t.ndim} or {t.fake_device for t in tensors}
    if len(devices) != 1 or (device := devices.pop()).type != "tpu":
        return _by_decomposition(mode, op, args, kwargs)
    if op in op_implementations_dict:
        op_implementations_dict[op](mode, op, *args, **kwargs)
    ordered = memory_formats.in_order(op, args, kwargs)
    if op in _decomposed() and has_open_sizes(ordered):
        found = _by_decomposition(mode, op, args, kwargs)
        with mode:
            results = memory_formats.laid_out(_names()[op], ordered, found)
        return results[0] if len(results) == 1 else tuple(results)
    with in_kernel_invocation_manager(mode):
        results = [t if t is None else FakeTensor(mode, t, device) for t in _results(op, ordered)]
    return results[0] if len(results) == 1 else tuple(results)


def _by_decomposition(mode: Any, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What PyTorch does first with an op without a meta function, on any device."""
    from torch._subclasses.fake_tensor import torch_decomp_decompositions

    if op not in _decomposed():
        return NotImplemented
    is_dense = all(t.layout is torch.strided for t in args if isinstance(t, torch.Tensor))
    applies = has_open_sizes((args, kwargs)) or (is_dense and torch_decomp_decompositions(op))
    with mode:
        if applies:
            return decomposition_table[op](*args, **kwargs)
        return op.decompose(*args, **kwargs)


@functools.cache
def _decomposed() -> frozenset[Any]:
    """The overloads of which PyTorch runs a decomposition before it asks a fake kernel."""
    return frozenset(op for op in _names() if op in decomposition_table and op not in meta_table)


@functools.cache
def register() -> None:
    """Let tracing on the device use the rules; PyTorch asks the first kernel that answers.

    It asks none for an overload with a decomposition, unless its table of meta functions has
    the overload. What is entered there is not called.
    """
    from torch._subclasses import fake_impls

    served = {*_names(), _STATED}
    for op in _decomposed():
        meta_table[op] = decomposition_table[op]
    fake_impls.op_implementations_checks.insert(0, (served.__contains__, _fake))
