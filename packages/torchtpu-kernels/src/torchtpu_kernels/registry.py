# SPDX-License-Identifier: Apache-2.0
"""Kernels by name: functions on arrays, and the functions derived from them.

The op `torchtpu::jax_call` takes tensors and a kernel's name. A gradient or a batched
form of a kernel is a kernel too, derived at first use, so differentiating twice or
batching a gradient needs nothing further.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import torch
from torchtpu_core.lowering import dtypes

from torchtpu_kernels import open_sizes, tracing

#: Sizes, of which some may be open, and the dtype.
Shape = tuple[tuple[Any, ...], torch.dtype]


@dataclass(slots=True)
class Kernel:
    """A function on arrays.

    Attributes:
        name: unique in this process; readable, as it appears in graphs and profiles.
        function: positional arrays to a flat list of arrays.
        shaped_like: operands whose shapes and dtypes the results have; None: tracing tells them.
        specs: shapes of the results, by those of the operands.
    """

    name: str
    function: Callable[..., Sequence[jax.Array]]
    shaped_like: tuple[int, ...] | None = None
    specs: dict[tuple[Shape, ...], list[Shape]] = field(default_factory=dict)

    def run(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Trace the function on arrays, under a kernel's settings."""
        return list(tracing.run(self.name, self.function, arrays))

    def results(self, operands: Sequence[Any]) -> list[Shape]:
        """Shape and dtype of each result for operands of these; runs nothing.

        Sizes may be open, of PyTorch's tracer or of JAX's; then some of the result may be.
        """
        shapes, meaning = open_sizes.named([t.shape for t in operands])
        if self.shaped_like is not None and open_sizes.is_open(shapes):
            return [(tuple(operands[i].shape), operands[i].dtype) for i in self.shaped_like]
        key = tuple((shape, t.dtype) for shape, t in zip(shapes, operands, strict=True))
        known = self.specs.get(key)
        if known is None:
            known = self.specs[key] = self._traced(key)
        return [(open_sizes.valued(shape, meaning), dtype) for shape, dtype in known]

    def _traced(self, operands: Sequence[Shape]) -> list[Shape]:
        avals = [jax.ShapeDtypeStruct(s, dtypes.to_numpy(d)) for s, d in operands]
        with contextlib.ExitStack() as stack:
            stack.enter_context(jax.enable_x64(True))
            if open_sizes.is_open([s for s, _ in operands]):
                stack.enter_context(open_sizes.blocks_allowed())
            traced = jax.eval_shape(lambda *arrays: self.run(arrays), *avals)
        return [(tuple(t.shape), dtypes.to_torch(t.dtype)) for t in traced]


_lock = threading.Lock()
_kernels: dict[str, Kernel] = {}
_numbers = itertools.count()


def add(label: str, function: Callable[..., Sequence[jax.Array]]) -> Kernel:
    """A new kernel; its name is `label` and a number."""
    with _lock:
        kernel = Kernel(f"{label}#{next(_numbers)}", function)
        _kernels[kernel.name] = kernel
        return kernel


def find(name: str) -> Kernel:
    """The kernel of a name."""
    return _kernels[name]


def _derived(
    name: str,
    function: Callable[..., Sequence[jax.Array]],
    shaped_like: tuple[int, ...] | None = None,
) -> Kernel:
    with _lock:
        return _kernels.setdefault(name, Kernel(name, function, shaped_like))


def vjp(name: str, operands: int, wanted: Sequence[int], given: Sequence[int]) -> Kernel:
    """The kernel that pulls cotangents back through another.

    Args:
        name: of the kernel to differentiate.
        operands: how many operands that kernel has.
        wanted: operands whose gradients are computed, all floating point.
        given: results that have a cotangent; it is zero for the others.

    Returns:
        A kernel from the operands, then the cotangents in the order of `given`, to the
        gradients in the order of `wanted`.
    """
    own = f"{name}:vjp({_list(wanted)};{_list(given)})"
    function = find(name).function

    def pull(*arrays: jax.Array) -> list[jax.Array]:
        primals, cotangents = list(arrays[:operands]), arrays[operands:]

        def of_wanted(*values: jax.Array) -> list[jax.Array]:
            merged = list(primals)
            for index, value in zip(wanted, values, strict=True):
                merged[index] = value
            return list(function(*merged))

        results, back = jax.vjp(of_wanted, *(primals[i] for i in wanted))
        known = dict(zip(given, cotangents, strict=True))
        return list(back([_cotangent(r, known.get(i)) for i, r in enumerate(results)]))

    return _derived(own, pull, tuple(wanted))


def jvp(name: str, operands: int, moving: Sequence[int]) -> Kernel:
    """The kernel that pushes tangents through another.

    Args:
        name: of the kernel to differentiate.
        operands: how many operands that kernel has.
        moving: operands that have a tangent, all floating point.

    Returns:
        A kernel from the operands, then the tangents in the order of `moving`, to the tangent of
        each result; zero, of the result's dtype, for one that is not floating point.
    """
    own = f"{name}:jvp({_list(moving)})"
    function = find(name).function

    def push(*arrays: jax.Array) -> list[jax.Array]:
        primals, tangents = list(arrays[:operands]), arrays[operands:]

        def of_moving(*values: jax.Array) -> list[jax.Array]:
            merged = list(primals)
            for index, value in zip(moving, values, strict=True):
                merged[index] = value
            return list(function(*merged))

        results, pushed = jax.jvp(of_moving, tuple(primals[i] for i in moving), tuple(tangents))
        return [
            p if jax.numpy.issubdtype(r.dtype, jax.numpy.inexact) else jax.numpy.zeros_like(r)
            for r, p in zip(results, pushed, strict=True)
        ]

    return _derived(own, push)


def batched(name: str, dims: Sequence[int | None]) -> Kernel:
    """The kernel `name` over a batch: `dims` are the batched dimensions, results batch first."""
    own = f"{name}:vmap({_list(dims)})"
    function = find(name).function

    def over(*arrays: jax.Array) -> list[jax.Array]:
        return list(jax.vmap(function, in_axes=tuple(dims))(*arrays))

    return _derived(own, over)


def _cotangent(result: jax.Array, given: jax.Array | None) -> Any:
    if not jax.numpy.issubdtype(result.dtype, jax.numpy.inexact):
        return np.zeros(result.shape, jax.dtypes.float0)
    if given is None:
        return jax.numpy.zeros_like(result)
    return given.astype(result.dtype)


def _list(values: Sequence[object]) -> str:
    return ",".join(str(v) for v in values)
