# SPDX-License-Identifier: Apache-2.0
"""Mistakes are refused in CPU PyTorch's words.

Two things stand between a mistake and CPU's message for it. PyTorch's meta kernels
word many errors differently, and lowerings fail in JAX's words: then the op is run on
host zeros of the same shapes, only to see what it raises. And meta kernels let some
mistakes through: `torchtpu_core.lowering.refusals` lists those.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import torch

from torchtpu_core import _C
from torchtpu_core.errors import TorchTPUError
from torchtpu_core.lowering import dtypes, masks, refusals
from torchtpu_core.lowering.promotion import Scalar
from torchtpu_core.lowering.table import operator
from torchtpu_core.runtime import host_only, script_warnings
from torchtpu_core.runtime.sharing import is_pointwise

# Host zeros are touched by few kernels before they refuse; beyond this size not even tried.
_LARGEST = 1 << 28
# How it says that a dtype does not hold a number.
_OVERFLOW = "without overflow"
# How PyTorch says that the CPU has no kernel for an op, which says nothing about the call.
_NO_KERNEL = ("Could not run 'aten::", "This is an operator for privateuse1 backends")
# How it says that what was made for a lowering is not what the op takes.
_NO_CALL = ("Expected a value of type",)


class _TooLargeError(Exception):
    """Operands that are not tried on the host."""


#: Not pointwise; their CPU kernels write an ``out=`` of one dtype, their meta kernels any.
_STRICT_OUTS = frozenset(
    f"aten::{name}" for name in ("amax", "amin", "_softmax", "_log_softmax", "logcumsumexp")
)


def refuse(overload: str, arguments: Mapping[str, Any]) -> None:
    """Raise if CPU PyTorch refuses such operands although the meta kernel does not.

    Called once per new signature. What only the host can run is told apart at last.
    """
    base, _, variant = overload.partition(".")
    check = refusals.CHECKS.get(base.rstrip("_"))
    if check is not None:
        check(arguments)
    if base.endswith("_") and is_pointwise(base, variant):
        _refuse_larger_than_self(arguments)
    written = arguments.get("out", arguments.get("self") if base.endswith("_") else None)
    if isinstance(written, torch.Tensor) and (is_pointwise(base, variant) or base in _STRICT_OUTS):
        _refuse_dtype(overload, arguments, {written.dtype})
    if base.startswith("aten::_foreach_") and base.endswith("_"):
        _refuse_dtype(overload, arguments, {t.dtype for t in arguments["self"]})
    host_only.refuse(overload, arguments)


def _refuse_dtype(overload: str, arguments: Mapping[str, Any], written: set[torch.dtype]) -> None:
    """Some meta kernels let through what cannot be written in a dtype: a small call shows it."""
    if all(_fits(value, dtype) for value in arguments.values() for dtype in written):
        return
    small = [_small(value) for value in arguments.values()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _run(overload, dict(zip(arguments, small, strict=True)))
    except NotImplementedError:
        return  # CPU lacks a kernel
    except RuntimeError as cpus:
        if not any(words in str(cpus) for words in _NO_KERNEL):
            raise


def _fits(value: Any, written: torch.dtype) -> bool:
    """Whether a result of this operand alone can be written."""
    if isinstance(value, torch.Tensor):
        return value.dtype == written
    if isinstance(value, (int, float, complex)):
        return torch.can_cast(torch.tensor(value).dtype, written)
    if isinstance(value, (list, tuple)):
        return all(_fits(item, written) for item in value)
    return True


def _small(value: Any) -> Any:
    """Ones, which divide, of as many dimensions; they broadcast as those of the value do."""
    return _on_host(value, lambda x: torch.ones([min(n, 2) for n in x.shape], dtype=x.dtype))


def _refuse_larger_than_self(arguments: Mapping[str, Any]) -> None:
    """Some meta kernels resize `self` where CPU refuses a result that does not fit it."""
    tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
    written = arguments.get("self")
    if written is None or all(tensor.shape == written.shape for tensor in tensors):
        return
    try:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    except RuntimeError:
        return  # the meta kernel says which sizes do not match
    if shape != written.shape:
        raise RuntimeError(
            f"output with shape {list(written.shape)} doesn't match the broadcast shape "
            f"{list(shape)}"
        )


def cpu_takes(overload: str, args: Sequence[Any]) -> bool:
    """Whether CPU PyTorch takes a call that its meta kernel refused, as of an empty batch.

    Unknown, and so no, where the number in a tensor without dimensions may decide.

    Args:
        overload: full name of the op.
        args: its arguments in schema order.
    """
    numbers = any(isinstance(value, torch.Tensor) and not value.ndim for value in args)
    if numbers or not overload.startswith("aten::"):
        return False
    schema = operator(overload)._schema.arguments
    try:
        _run(overload, {a.name: _zeros(value) for a, value in zip(schema, args, strict=True)})
    except Exception:
        return False
    return True


def raise_cpus_error(overload: str, args: Sequence[Any], error: BaseException | None) -> None:
    """Raise what CPU PyTorch raises for such a call; return if it raises nothing.

    Args:
        overload: full name of the op that failed.
        args: its arguments in schema order.
        error: the Python exception it failed with, None for one of C++.
    """
    with contextlib.suppress(_TooLargeError):
        _raise(overload, _named(overload, args), error, _zeros)


def raise_for_arrays(
    overload: str, args: Sequence[Any], kwargs: Mapping[str, Any], error: Exception
) -> None:
    """As `raise_cpus_error`, for a lowering that failed while it was traced.

    Args:
        overload: full name of the op.
        args: what the lowering got, in schema order; JAX's arrays for tensors and for numbers.
        kwargs: further arguments; those that the op does not have are left out.
        error: what the lowering raised.
    """
    if not overload.startswith("aten::"):
        return
    schema = {a.name: a for a in operator(overload)._schema.arguments}
    given = {**dict(zip(schema, args, strict=False)), **kwargs}
    kinds = {name: str(schema[name].type) for name in given if name in schema}
    by_name = {name: (given[name], "Tensor" not in kind) for name, kind in kinds.items()}
    with contextlib.suppress(_TooLargeError):
        _raise(overload, by_name, error, lambda value: _zeros_of_array(*value))


def _named(overload: str, args: Sequence[Any]) -> dict[str, Any]:
    schema = operator(overload)._schema.arguments
    return {a.name: value for a, value in zip(schema, args, strict=True)}


def refuse_numbers(overload: str, args: Sequence[Any]) -> None:
    """Raise, or warn, as CPU PyTorch does for numbers that a rule does not cover.

    Args:
        overload: full name of the op.
        args: its arguments in schema order.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with contextlib.suppress(NotImplementedError):  # the CPU lacks a kernel
            try:
                _raise(overload, _named(overload, args), None, _zeros)
            except _TooLargeError:
                _raise(overload, _named(overload, args), None, _small)
    for warning in said:
        script_warnings.warn_at(_C.user_line(), str(warning.message), warning.category)


def _raise(
    overload: str,
    arguments: Mapping[str, Any],
    error: BaseException | None,
    on_host: Callable[[Any], Any],
) -> None:
    """Raise what the CPU says of a call whose arguments `on_host` makes."""
    if isinstance(error, (TorchTPUError, torch.OutOfMemoryError)):
        return
    if not overload.startswith("aten::"):
        return  # an op that users or plugins defined: the CPU has no words for it
    made = {name: on_host(value) for name, value in arguments.items()}
    indices = made.get("indices")
    if isinstance(indices, list) and any(map(_is_mask, indices)):
        refuse(overload, made)
        return  # masks of zeros choose nothing, so that the CPU would speak of another shape
    try:
        _run(overload, made)
    except Exception as cpus:
        if any(words in str(cpus) for words in _NO_CALL):
            return
        if not any(words in str(cpus) for words in _NO_KERNEL):
            raise _with_numbers(cpus, overload, made).with_traceback(None) from None
        refuse(overload, made)


def _with_numbers(error: Exception, overload: str, arguments: Mapping[str, Any]) -> Exception:
    """The error that a dtype does not hold a number, with the call's numbers."""
    if _OVERFLOW not in str(error):
        return error
    numbers = (
        f"{value} (argument '{name}' of {overload})"
        for name, value in arguments.items()
        if isinstance(value, (int, float, complex)) and not isinstance(value, bool)
    )
    return type(error)(f"{error}: {', '.join(numbers)}")


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in masks.MASKS


def _zeros_of_array(value: Any, is_number: bool) -> Any:
    if isinstance(value, (list, tuple)):
        return [_zeros_of_array(item, is_number) for item in value]
    if isinstance(value, Scalar):
        return value.kind(1) if value.dtype is None else torch.ones((), dtype=value.dtype)
    if not isinstance(value, (jax.Array, jax.ShapeDtypeStruct, np.ndarray)):
        return torch.device("cpu") if isinstance(value, torch.device) else value
    dtype = dtypes.to_torch(value.dtype)
    if is_number:
        return torch.ones((), dtype=dtype).item()
    return _host_zeros(torch.empty(value.shape, dtype=dtype, device="meta"))


def _zeros(value: Any) -> Any:
    return _on_host(value, _host_zeros)


def _on_host(value: Any, made: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """An argument of a call on the CPU, with other tensors."""
    if isinstance(value, torch.Tensor):
        return made(value) if value.device.type == "tpu" else value
    if isinstance(value, (list, tuple)):
        return [_on_host(item, made) for item in value]
    if isinstance(value, torch.Generator):
        return None
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _host_zeros(tensor: torch.Tensor) -> torch.Tensor:
    elements = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    if elements > _LARGEST:
        raise _TooLargeError
    flat = torch.zeros(max(elements, 0), dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())


def _run(overload: str, given: Mapping[str, Any]) -> None:
    op = operator(overload)
    keyword_only = {a.name for a in op._schema.arguments if a.kwarg_only}
    positional = [value for name, value in given.items() if name not in keyword_only]
    keywords = {name: value for name, value in given.items() if name in keyword_only}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        op(*positional, **keywords)
