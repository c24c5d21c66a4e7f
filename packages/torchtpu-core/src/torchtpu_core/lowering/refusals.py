# SPDX-License-Identifier: Apache-2.0
"""Calls that PyTorch's meta kernels accept and its CPU kernels refuse.

A check looks at metadata only and raises CPU's class with CPU's words. Without it the
device would promote or reinterpret silently. Not here: dtypes that CPU merely has no
kernel for, where the device's result is the obvious one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchtpu_core.lowering import refused_shapes

Arguments = Mapping[str, Any]
Check = Callable[[Arguments], None]

_NAMES = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def _name(dtype: torch.dtype) -> str:
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def _same_dtype(first: str, others: tuple[str, ...], message: str) -> Check:
    """`message` is formatted with the dtypes of `first` and of the operand that differs."""

    def check(arguments: Arguments) -> None:
        expected = arguments[first].dtype
        for other in others:
            operand = arguments[other]
            if isinstance(operand, torch.Tensor) and operand.dtype != expected:
                raise RuntimeError(message.format(_name(expected), _name(operand.dtype)))

    return check


def _refused(
    operand: str,
    refused: Callable[[torch.dtype], bool],
    message: str,
    error: type[Exception] = RuntimeError,
) -> Check:
    """`message` is formatted with the operand's dtype."""

    def check(arguments: Arguments) -> None:
        dtype = arguments[operand].dtype
        if refused(dtype):
            raise error(message.format(_name(dtype)))

    return check


def _no_kernel(operand: str, refused: Callable[[torch.dtype], bool], kernel: str) -> Check:
    """CPU's error for a dtype that has no meaning for the op."""
    message = f"\"{kernel}\" not implemented for '{{}}'"
    return _refused(operand, refused, message, NotImplementedError)


def _is_complex(dtype: torch.dtype) -> bool:
    return dtype.is_complex


def _is_bool(dtype: torch.dtype) -> bool:
    return dtype == torch.bool


def _not_floating(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def _not_in(*allowed: torch.dtype) -> Callable[[torch.dtype], bool]:
    return lambda dtype: dtype not in allowed


def _reduces_nothing(op: str, *, whole: bool) -> Check:
    """A reduction without an identity, over no elements.

    Args:
        op: its name, for the message.
        whole: whether the form without a dim has no value for an empty tensor either.
    """

    def check(arguments: Arguments) -> None:
        tensor, dims = arguments["self"], arguments.get("dim")
        if tensor.numel() != 0 or "other" in arguments:
            return
        if dims in (None, []):
            if whole:
                raise RuntimeError(
                    f"{op}(): Expected reduction dim to be specified for input.numel() == 0. "
                    "Specify the reduction dim with the 'dim' argument."
                )
            return
        for dim in dims if isinstance(dims, list) else [dims]:
            if -tensor.ndim <= dim < tensor.ndim and tensor.shape[dim] == 0:
                raise IndexError(f"{op}(): Expected reduction dim {dim} to have non-zero size.")

    return check


def _all(*checks: Check) -> Check:
    def check(arguments: Arguments) -> None:
        for each in checks:
            each(arguments)

    return check


def _index_dtypes(arguments: Arguments) -> None:
    for index in arguments["indices"]:
        if index is not None and index.dtype not in (*_INDEX, torch.bool, torch.uint8):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")


def _integer_power(arguments: Arguments) -> None:
    base, exponent = arguments["self"], arguments["exponent"]
    if not isinstance(base, torch.Tensor) or not _not_floating(base.dtype):
        return
    if isinstance(exponent, int) and exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")


def _addmm(arguments: Arguments) -> None:
    if "out_dtype" in arguments:  # the summand has the result's dtype
        return
    _same_dtype(
        "self", ("mat1", "mat2"), "self and mat2 must have the same dtype, but got {} and {}"
    )(arguments)


_INDEX = (torch.int32, torch.int64)
_PUT = _all(
    _index_dtypes,
    _same_dtype(
        "self",
        ("values",),
        "Index put requires the source and destination dtypes match, "
        "got {} for the destination and {} for the source.",
    ),
)
_TARGET = _refused(
    "target",
    _not_in(torch.int64, torch.uint8),
    "expected target dtype to be Long or Byte, but got {}",
)
_CLAMP = _refused(
    "self", _is_complex, "clamp is not supported for complex types", NotImplementedError
)

_OPERANDS: dict[str, Check] = {
    "aten::mm": _same_dtype(
        "self", ("mat2",), "expected m1 and m2 to have the same dtype, but got: {} != {}"
    ),
    "aten::addmm": _addmm,
    "aten::_addmm_activation": _addmm,
    "aten::mv": _same_dtype(
        "self", ("vec",), "addmv input tensors must have the same dtype, but got {} and {}"
    ),
    "aten::addmv": _same_dtype(
        "self", ("mat", "vec"), "addmv input tensors must have the same dtype, but got {} and {}"
    ),
    "aten::addbmm": _same_dtype(
        "self",
        ("batch1", "batch2"),
        "self and mat2 must have the same dtype, but got {} and {}",
    ),
    "aten::heaviside": _same_dtype(
        "self",
        ("values",),
        "heaviside is not yet implemented for tensors with different dtypes.",
    ),
    "aten::linalg_cross": _same_dtype("self", ("other",), "expected scalar type {} but found {}"),
    "aten::_cdist_forward": _same_dtype("x1", ("x2",), "expected scalar type {} but found {}"),
    "aten::binary_cross_entropy": _same_dtype(
        "self", ("target", "weight"), "Found dtype {1} but expected {0}"
    ),
    "aten::index_add": _same_dtype(
        "self",
        ("source",),
        "index_add_(): self ({}) and source ({}) must have the same scalar type",
    ),
    "aten::index_copy": _same_dtype(
        "self",
        ("source",),
        "index_copy_(): self and source expected to have the same dtype, "
        "but got (self) {} and (source) {}",
    ),
    "aten::index": _index_dtypes,
    "aten::index_put": _PUT,
    "aten::_index_put_impl": _PUT,
    "aten::index_select": _refused(
        "index", _not_in(*_INDEX), "index_select(): Expected dtype int32 or int64 for index"
    ),
    "aten::nll_loss_forward": _TARGET,
    "aten::nll_loss2d_forward": _TARGET,
    "aten::relu": _refused("self", _is_bool, "Boolean inputs not supported for relu"),
    "aten::sort": _refused("self", _is_complex, "Sort does not support complex dtypes"),
    "aten::clamp": _CLAMP,
    "aten::clamp_min": _CLAMP,
    "aten::clamp_max": _CLAMP,
    "aten::pow": _integer_power,
    "aten::uniform": _no_kernel("self", _not_floating, "check_uniform_bounds"),
    "aten::max": _all(
        _no_kernel("self", _is_complex, "max_all"), _reduces_nothing("max", whole=True)
    ),
    "aten::min": _all(
        _no_kernel("self", _is_complex, "min_all"), _reduces_nothing("min", whole=True)
    ),
    "aten::amax": _reduces_nothing("amax", whole=True),
    "aten::amin": _reduces_nothing("amin", whole=True),
    "aten::median": _reduces_nothing("median", whole=False),
    "aten::nanmedian": _reduces_nothing("nanmedian", whole=False),
    "aten::kthvalue": _reduces_nothing("kthvalue", whole=True),
    "aten::mode": _reduces_nothing("mode", whole=True),
}

#: Checks by the op's name, for all its overloads.
CHECKS: dict[str, Check] = {
    name: _all(*(t[name] for t in (_OPERANDS, refused_shapes.CHECKS) if name in t))
    for name in {**_OPERANDS, **refused_shapes.CHECKS}
}
