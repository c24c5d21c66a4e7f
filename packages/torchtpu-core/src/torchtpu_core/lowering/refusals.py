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

from torchtpu_core.lowering import refused_norms, refused_shapes
from torchtpu_core.lowering.refused_shapes import dtype_name

Arguments = Mapping[str, Any]
Check = Callable[[Arguments], None]


def _same_dtype(first: str, others: tuple[str, ...], message: str) -> Check:
    """`message` is formatted with the dtypes of `first` and of the operand that differs."""

    def check(arguments: Arguments) -> None:
        expected = arguments[first].dtype
        for other in others:
            operand = arguments[other]
            if isinstance(operand, torch.Tensor) and operand.dtype != expected:
                raise RuntimeError(message.format(dtype_name(expected), dtype_name(operand.dtype)))

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
            raise error(message.format(dtype_name(dtype)))

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


def _not_real(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point


def _not_whole(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


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


def _drawn_dtype(kernel: str) -> Check:
    """Numbers are drawn in the dtype of `out`."""

    def check(arguments: Arguments) -> None:
        out = arguments.get("out")
        if out is not None and _not_floating(out.dtype):
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{dtype_name(out.dtype)}'")

    return check


def _factor(arguments: Arguments) -> None:
    """`alpha` is multiplied in the dtype of the result."""
    alpha = arguments.get("alpha", 1)
    dtype = torch.result_type(arguments["self"], arguments["other"])
    if alpha is True and dtype != torch.bool:
        raise RuntimeError("Boolean alpha only supported for Boolean results.")
    if isinstance(alpha, float) and not (dtype.is_floating_point or dtype.is_complex):
        raise RuntimeError(
            "For integral input tensors, argument alpha must not be a floating point number."
        )


def _subtraction(arguments: Arguments) -> None:
    """Of bools, which have operators of their own."""
    bools = [
        operand is True or operand is False or getattr(operand, "dtype", None) == torch.bool
        for operand in (arguments["self"], arguments["other"])
    ]
    what, instead = "a bool tensor", "If you are trying to invert a mask, use the `~` or "
    instead += "`logical_not()` operator instead."
    if all(bools):
        what, instead = "two bool tensors", "Use the `^` or `logical_xor()` operator instead."
    if any(bools):
        raise RuntimeError(
            f"Subtraction, the `-` operator, with {what} is not supported. {instead}"
        )


def _truth_out(op: str) -> Check:
    """Where the answer of `all` and `any` may be written."""

    def check(arguments: Arguments) -> None:
        out = arguments.get("out")
        if out is not None and out.dtype not in (torch.bool, torch.uint8):
            raise RuntimeError(
                f"{op} only supports bool tensor for result, got: {dtype_name(out.dtype)}"
            )

    return check


def _random(arguments: Arguments) -> None:
    if arguments["self"].dtype.is_complex:
        raise RuntimeError(
            "check_random_bounds handles only integral, floating-point and boolean types"
        )


def _bernoulli(arguments: Arguments) -> None:
    """Without a `p`, the probabilities are in `self`."""
    dtype = arguments["self"].dtype
    if "p" not in arguments and not dtype.is_floating_point:
        kernel = "bernoulli_tensor_cpu_p_"
        raise NotImplementedError(f"\"{kernel}\" not implemented for '{dtype_name(dtype)}'")


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
_BATCH_NORM = _all(_no_kernel("input", _is_complex, "batch_norm"), refused_norms.dtypes)
_CLAMP = _refused(
    "self", _is_complex, "clamp is not supported for complex types", NotImplementedError
)


def _is_half(dtype: torch.dtype) -> bool:
    return dtype in (torch.float16, torch.bfloat16)


#: Decompositions of matrices, which neither CPU nor XLA has in half precision: the operand and
#: CPU's kernel.
_DECOMPOSED = {
    "_linalg_det": ("A", "lu_cpu"),
    "_linalg_eigh": ("A", "linalg_eigh_cpu"),
    "_linalg_solve_ex": ("A", "lu_cpu"),
    "_linalg_svd": ("A", "linalg_svd_cpu"),
    "geqrf": ("self", "geqrf_cpu"),
    "linalg_cholesky_ex": ("self", "cholesky_cpu"),
    "linalg_householder_product": ("input", "orgqr_cpu"),
    "linalg_lu": ("A", "lu_cpu"),
    "linalg_lu_factor_ex": ("A", "lu_cpu"),
    "linalg_qr": ("A", "geqrf_cpu"),
}

#: What looks at dtypes and numbers only.
DTYPES: dict[str, Check] = {
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
    "aten::put": _same_dtype(
        "self",
        ("source",),
        "put_(): self and source expected to have the same dtype, "
        "but got self.dtype = {} and source.dtype = {}",
    ),
    "aten::index_fill": _refused(
        "index",
        _not_in(torch.int64),
        "index_fill_(): Expected dtype int64 for index.",
        IndexError,
    ),
    "aten::masked_fill": _refused(
        "mask",
        _not_in(torch.bool),
        "masked_fill only supports boolean masks, but got mask with dtype {}",
    ),
    "aten::add": _factor,
    "aten::sub": _all(_subtraction, _factor),
    "aten::rsub": _all(_subtraction, _factor),
    "aten::sign": _refused(
        "self",
        _is_complex,
        "Unlike NumPy, torch.sign is not intended to support complex numbers. Please use "
        "torch.sgn instead.",
        NotImplementedError,
    ),
    "aten::all": _truth_out("all"),
    "aten::any": _truth_out("any"),
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
    "aten::atan2": _no_kernel("self", _is_complex, "atan2_cpu"),
    "aten::bitwise_not": _no_kernel("self", _not_whole, "bitwise_not_cpu"),
    "aten::gcd": _no_kernel("self", _not_whole, "gcd_cpu"),
    "aten::lcm": _no_kernel("self", _not_whole, "lcm_cpu"),
    "aten::frac": _no_kernel("self", _not_real, "frac_cpu"),
    "aten::round": _no_kernel("self", _is_complex, "round_vml_cpu"),
    "aten::signbit": _refused(
        "self",
        _is_complex,
        "signbit is not implemented for complex tensors.",
        NotImplementedError,
    ),
    **{
        f"aten::{op}": _refused(
            "self", _is_complex, f"{op} is not supported for complex inputs", NotImplementedError
        )
        for op in ("ceil", "floor", "trunc")
    },
    **{
        f"aten::{op}": _refused(
            "self", _not_floating, "std and var only support floating point and complex dtypes"
        )
        for op in ("std", "var", "std_mean", "var_mean")
    },
    **{
        f"aten::{op}": _no_kernel(operand, _is_half, kernel)
        for op, (operand, kernel) in _DECOMPOSED.items()
    },
    "aten::logcumsumexp": _no_kernel("self", _not_floating, "logcumsumexp_out_cpu"),
    "aten::uniform": _no_kernel("self", _not_floating, "check_uniform_bounds"),
    "aten::random": _random,
    "aten::rand": _drawn_dtype("check_uniform_bounds"),
    "aten::normal": _drawn_dtype("normal_kernel_cpu"),
    "aten::bernoulli": _bernoulli,
    "aten::_softmax_backward_data": _no_kernel(
        "grad_output", _not_real, "softmax_backward_lastdim_kernel_impl"
    ),
    "aten::_log_softmax_backward_data": _no_kernel(
        "grad_output", _not_real, "log_softmax_backward_lastdim_kernel_impl"
    ),
    "aten::native_batch_norm": _BATCH_NORM,
    "aten::_native_batch_norm_legit": _BATCH_NORM,
    "aten::_native_batch_norm_legit_no_training": _BATCH_NORM,
    "aten::native_group_norm": _all(
        _no_kernel("input", _is_complex, "GroupNormKernelImpl"), refused_norms.dtypes
    ),
    "aten::native_layer_norm": refused_norms.dtypes,
    "aten::_histogramdd_from_bin_cts": _no_kernel("self", _not_real, "histogramdd"),
    "aten::_histogramdd_from_bin_tensors": _no_kernel("self", _not_real, "histogramdd"),
    "aten::max": _all(
        _no_kernel("self", _is_complex, "max_all"), _reduces_nothing("max", whole=True)
    ),
    "aten::min": _all(
        _no_kernel("self", _is_complex, "min_all"), _reduces_nothing("min", whole=True)
    ),
    "aten::_adaptive_avg_pool2d": _no_kernel("self", _not_real, "adaptive_avg_pool2d"),
    "aten::_adaptive_avg_pool3d": _no_kernel("self", _not_real, "adaptive_avg_pool3d_cpu"),
    "aten::adaptive_max_pool2d": _no_kernel("self", _not_real, "adaptive_max_pool2d"),
    "aten::adaptive_max_pool3d": _no_kernel("self", _not_real, "adaptive_max_pool3d_cpu"),
    "aten::amax": _reduces_nothing("amax", whole=True),
    "aten::amin": _reduces_nothing("amin", whole=True),
    "aten::median": _reduces_nothing("median", whole=False),
    "aten::nanmedian": _reduces_nothing("nanmedian", whole=False),
    "aten::kthvalue": _reduces_nothing("kthvalue", whole=True),
    "aten::mode": _reduces_nothing("mode", whole=True),
}

#: Checks by the op's name, for all its overloads.
CHECKS: dict[str, Check] = {
    name: _all(*(t[name] for t in (DTYPES, refused_shapes.CHECKS) if name in t))
    for name in {**DTYPES, **refused_shapes.CHECKS}
}
