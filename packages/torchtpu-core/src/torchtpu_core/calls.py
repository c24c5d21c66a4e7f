# SPDX-License-Identifier: Apache-2.0
"""Running Python functions on arrays as recorded calls on tensors of the device.

This is the way in for compiled graphs, custom kernels and collectives: a function on
JAX arrays becomes a call like any op's, so views, donation, simulated time, counters,
errors and the program cache are those of eager mode. It deliberately knows nothing of
graphs or kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchtpu_core import _C
from torchtpu_core.lowering.table import native

#: (sizes, strides, dtype) of one fresh result.
OutSpec = tuple[list[int], list[int], torch.dtype]

#: A recordable call, as `device_call` makes it.
DeviceCall = _C.Call

#: Signatures and programs name the call they came from for as long as the process lives.
_alive: list[Any] = []


def device_call(
    name: str,
    function: Callable[..., Any],
    *,
    random: int = 0,
    cache_key: str = "",
    alone: bool = False,
) -> DeviceCall:
    """A recordable call of `function`.

    Args:
        name: shown in errors and profiles, in the form ``namespace::name``.
        function: gets the list of operand arrays, then one run-time
            `torchtpu_core.lowering.promotion.Scalar` per number; returns a tuple: fresh
            results, then the new value of each written operand. With `random` it also
            gets the keyword ``rng``. Traced with 64-bit types on.
        random: how many random ops the function stands for. The generator advances as
            if each had been called; the i-th draws at offset ``rng.offset + 4 * i``.
        cache_key: identifies what `function` does, in every process; empty: programs with it
            are lowered anew in each process.
        alone: a program of its own in Fused Eager too. A compiled graph was compiled for its
            sizes once; as part of longer traces it would be compiled again and again.

    Returns:
        ``call(tensors, scalars, written, out_specs)``: tpu tensors; Python ints and
        floats; indices of the tensors that are written; a function that gives an
        `OutSpec` per fresh result, asked once per new signature of operands. It
        returns the fresh results as a list.

        ``call.bind(operands, written, out_specs, returns, boxed)`` fixes everything but the
        tensors, for callers that call often: positions of the operands among the arguments;
        `written` and `out_specs` as above; for each item to return (True, index of a result),
        (False, position of an argument) or (False, None). The function that it gives takes
        the arguments one by one or, `boxed`, as a list that it empties.
    """
    call = _C.Call(name, native(name, function, cache_key=cache_key), random, alone)
    _alive.append(call)
    return call


def array_of(tensor: torch.Tensor, *, lend: bool = True) -> Any:
    """The ``jax.Array`` behind a tpu tensor, in the tensor's shape; runs what is pending.

    Args:
        tensor: the tensor.
        lend: whether others may get at the array's memory and read it when the caller has
            dropped the array; until the tensor is written, `own_array` is None then.
    """
    return _C.array_of(tensor, lend)


def own_array(tensor: torch.Tensor) -> Any:
    """The array of a tpu tensor if nothing else can see its memory, so that it may be changed.

    It is computed, and no program that reads it is under way. None if there may be another
    reader, if the tensor is not all of its storage, or if its elements are not in order.
    """
    return _C.own_array(tensor)


def tensor_of(array: Any, device: int, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tpu tensor around a ``jax.Array`` of the device's client that nobody else modifies."""
    return _C.tensor_of(array, device, list(sizes), dtype)


def assign(tensor: torch.Tensor, array: Any) -> None:
    """Give a tpu tensor the contents of a ``jax.Array`` of its shape that nobody else modifies.

    The array must belong to the client of the tensor's device. Views of the tensor see
    the new contents; the autograd version is not advanced.
    """
    _C.assign(tensor, array)


def add_device_time(device: int, duration_ps: int) -> None:
    """Occupy the current stream of a device for `duration_ps` of simulated time."""
    _C.add_device_time(device, duration_ps)


def user_line() -> str:
    """The innermost line of the caller that is not library code: ``file.py:12 in train``.

    In the backward pass it is ``backward of`` and the forward op's line, unless the script's own
    function or hook is the caller.
    """
    return _C.user_line()
