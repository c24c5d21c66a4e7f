# SPDX-License-Identifier: Apache-2.0
"""Calls that PyTorch's meta kernels accept and its CPU kernels refuse.

A check looks at metadata only and raises CPU's class with CPU's words. Without it the
device would promote or reinterpret silently. Not here: dtypes that CPU merely has no
kernel for, where the device's result is the obvious one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch

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


def _dtype_in(operand: str, allowed: frozenset[torch.dtype], message: str) -> Check:
    def check(arguments: Arguments) -> None:
        dtype = arguments[operand].dtype
        if dtype not in allowed:
            raise RuntimeError(message.format(_name(dtype)))

    return check


def _no_kernel(operand: str, refused: Callable[[torch.dtype], bool], kernel: str) -> Check:
    """CPU's NotImplementedError for a dtype that has no meaning for the op."""

    def check(arguments: Arguments) -> None:
        dtype = arguments[operand].dtype
        if refused(dtype):
            raise NotImplementedError(f'"{kernel}" not implemented for \'{_name(dtype)}\'')

    return check


def _is_complex(dtype: torch.dtype) -> bool:
    return dtype.is_complex


def _not_floating(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


def _not_empty_whole(op: str) -> Check:
    """A reduction over everything, without an identity."""

    def check(arguments: Arguments) -> None:
        if arguments["self"].numel() == 0:
            raise RuntimeError(
                f"{op}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument."
            )

    return check


def _not_empty_dim(op: str) -> Check:
    """A reduction over one dim, without an identity."""

    def check(arguments: Arguments) -> None:
        tensor, dim = arguments["self"], arguments["dim"]
        if tensor.ndim and -tensor.ndim <= dim < tensor.ndim and tensor.shape[dim] == 0:
            raise IndexError(f"{op}(): Expected reduction dim {dim} to have non-zero size.")

    return check


def _not_empty_dims(op: str) -> Check:
    def check(arguments: Arguments) -> None:
        if arguments["dim"]:
            for dim in arguments["dim"]:
                _not_empty_dim(op)({**arguments, "dim": dim})
        else:
            _not_empty_whole(op)(arguments)

    return check


def _all(*checks: Check) -> Check:
    def check(arguments: Arguments) -> None:
        for each in checks:
            each(arguments)

    return check


def _no_complex(op: str) -> Check:
    def check(arguments: Arguments) -> None:
        if arguments["self"].is_complex():
            raise NotImplementedError(f"{op} is not supported for complex types")

    return check


def _index_dtype(arguments: Arguments) -> None:
    for index in arguments["indices"]:
        if index is not None and index.dtype not in _INDEX | {torch.bool, torch.uint8}:
            _refuse_index()


def _refuse_index() -> NoReturn:
    raise IndexError("tensors used as indices must be long, int, byte or bool tensors")


def _ordered_range(arguments: Arguments) -> None:
    low, high = arguments["from"], arguments["to"]
    if high is not None and low >= high:
        raise RuntimeError(
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}"
        )


_INDEX = frozenset({torch.int32, torch.int64})
_TARGET = frozenset({torch.int64, torch.uint8})
_MASK = frozenset({torch.bool, torch.uint8})
_NOT_BOOL = frozenset(_NAMES) - {torch.bool} | {torch.float8_e4m3fn, torch.float8_e5m2}
_NOT_COMPLEX = _NOT_BOOL | {torch.bool} - {torch.complex64, torch.complex128}

#: Checks by full overload name, or by the op's name for all its overloads.
TABLE: dict[str, Check] = {
    "aten::mm": _same_dtype(
        "self", ("mat2",), "expected m1 and m2 to have the same dtype, but got: {} != {}"
    ),
    "aten::addmm": _same_dtype(
        "self", ("mat1", "mat2"), "self and mat2 must have the same dtype, but got {} and {}"
    ),
    "aten::_addmm_activation": _same_dtype(
        "self", ("mat1", "mat2"), "self and mat2 must have the same dtype, but got {} and {}"
    ),
    "aten::mv": _same_dtype(
        "self", ("vec",), "addmv input tensors must have the same dtype, but got {} and {}"
    ),
    "aten::addmv": _same_dtype(
        "self", ("mat", "vec"), "addmv input tensors must have the same dtype, but got {} and {}"
    ),
    "aten::_cdist_forward": _same_dtype(
        "x1", ("x2",), "expected scalar type {} but found {}"
    ),
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
    "aten::index_put": _all(
        _index_dtype,
        _same_dtype(
            "self",
            ("values",),
            "Index put requires the source and destination dtypes match, "
            "got {} for the destination and {} for the source.",
        ),
    ),
    "aten::index": _index_dtype,
    "aten::index_select": _dtype_in(
        "index", _INDEX, "index_select(): Expected dtype int32 or int64 for index"
    ),
    "aten::masked_select": _dtype_in("mask", _MASK, "masked_select: expected BoolTensor for mask"),
    "aten::nll_loss_forward": _dtype_in(
        "target", _TARGET, "expected target dtype to be Long or Byte, but got {}"
    ),
    "aten::nll_loss2d_forward": _dtype_in(
        "target", _TARGET, "expected target dtype to be Long or Byte, but got {}"
    ),
    "aten::relu": _dtype_in("self", _NOT_BOOL, "Boolean inputs not supported for relu"),
    "aten::sort": _dtype_in("self", _NOT_COMPLEX, "Sort does not support complex dtypes"),
    "aten::clamp": _no_complex("clamp"),
    "aten::clamp_min": _no_complex("clamp"),
    "aten::clamp_max": _no_complex("clamp"),
    "aten::uniform": _no_kernel("self", _not_floating, "check_uniform_bounds"),
    "aten::histc": _no_kernel("self", _not_floating, "histogram_cpu"),
    "aten::max": _no_kernel("self", _is_complex, "max_all"),
    "aten::min": _no_kernel("self", _is_complex, "min_all"),
    "aten::max.dim": _not_empty_dim("max"),
    "aten::min.dim": _not_empty_dim("min"),
    "aten::median.dim": _not_empty_dim("median"),
    "aten::nanmedian.dim": _not_empty_dim("nanmedian"),
    "aten::kthvalue": _not_empty_dim("kthvalue"),
    "aten::mode": _not_empty_dim("mode"),
    "aten::amax": _not_empty_dims("amax"),
    "aten::amin": _not_empty_dims("amin"),
    "aten::random.from": _ordered_range,
}
