# SPDX-License-Identifier: Apache-2.0
"""Calls that PyTorch's meta kernels accept and its CPU kernels refuse.

A check looks at metadata only and raises CPU's class with CPU's words. Without it the
device would promote or reinterpret silently. Not here: dtypes that CPU merely has no
kernel for, where the device's result is the obvious one.
"""

from __future__ import annotations

import torch

from torchtpu_core.lowering import refused_shapes, refused_weights
from torchtpu_core.lowering.refusal_kinds import (
    NO_KERNELS,
    Arguments,
    Check,
    all_of,
    is_bool,
    is_complex,
    no_kernel,
    not_floating,
    not_in,
    not_real,
    not_whole,
    refused,
    same_dtype,
)
from torchtpu_core.lowering.refused_shapes import dtype_name


def _clamp(arguments: Arguments) -> None:
    """Neither the tensors nor their bounds are complex, which have no order."""
    given = [v for value in arguments.values() for v in _items(value)]
    if any(isinstance(v, complex) or is_complex(getattr(v, "dtype", torch.bool)) for v in given):
        raise NotImplementedError("clamp is not supported for complex types")


def _items(value: object) -> list[object] | tuple[object, ...]:
    return value if isinstance(value, (list, tuple)) else [value]


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


def _index_dtypes(arguments: Arguments) -> None:
    for index in arguments["indices"]:
        if index is not None and index.dtype not in (*_INDEX, torch.bool, torch.uint8):
            raise IndexError("tensors used as indices must be long, int, byte or bool tensors")


def _integer_power(arguments: Arguments) -> None:
    base, exponent = arguments["self"], arguments["exponent"]
    if not isinstance(base, torch.Tensor) or not not_floating(base.dtype):
        return
    if isinstance(exponent, int) and exponent < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")


def _drawn_dtype(kernel: str) -> Check:
    """Numbers are drawn in the dtype of `out`."""

    def check(arguments: Arguments) -> None:
        out = arguments.get("out")
        if out is not None and not_floating(out.dtype):
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


def _list_subtraction(arguments: Arguments) -> None:
    tensors = arguments["self"]
    others = next(arguments[name] for name in ("other", "scalars", "scalar") if name in arguments)
    if not isinstance(others, (list, tuple)):
        others = [others] * len(tensors)
    for tensor, other in zip(tensors, others, strict=False):
        _subtraction({"self": tensor, "other": other})


def _list_norm(arguments: Arguments) -> None:
    for tensor in arguments["self"]:
        if not_floating(tensor.dtype):
            raise RuntimeError(
                "linalg.vector_norm: Expected a floating point or complex tensor as input. "
                f"Got {dtype_name(tensor.dtype)}"
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
    same_dtype(
        "self", ("mat1", "mat2"), "self and mat2 must have the same dtype, but got {} and {}"
    )(arguments)


_INDEX = (torch.int32, torch.int64)
_PUT = all_of(
    _index_dtypes,
    same_dtype(
        "self",
        ("values",),
        "Index put requires the source and destination dtypes match, "
        "got {} for the destination and {} for the source.",
    ),
)
_LIKELIHOOD = all_of(
    refused(
        "target",
        not_in(torch.int64, torch.uint8),
        "expected target dtype to be Long or Byte, but got {}",
    ),
    same_dtype("self", ("weight",), "expected scalar type {} but found {}"),
)
_BATCH_NORM = all_of(no_kernel("input", is_complex, "batch_norm"), refused_weights.norm)
_GRID = same_dtype("input", ("grid",), "expected scalar type {} but found {}")
_BAG = same_dtype(
    "weight",
    ("per_sample_weights",),
    "expected 'weight' and 'per_sample_weights' to have the same dtype, but got {} and {}",
)


#: What looks at dtypes and numbers only.
DTYPES: dict[str, Check] = {
    "aten::mm": same_dtype(
        "self", ("mat2",), "expected m1 and m2 to have the same dtype, but got: {} != {}"
    ),
    "aten::addmm": _addmm,
    "aten::_addmm_activation": _addmm,
    "aten::mv": same_dtype(
        "self", ("vec",), "addmv input tensors must have the same dtype, but got {} and {}"
    ),
    "aten::addmv": same_dtype(
        "self", ("mat", "vec"), "addmv input tensors must have the same dtype, but got {} and {}"
    ),
    "aten::addbmm": same_dtype(
        "self",
        ("batch1", "batch2"),
        "self and mat2 must have the same dtype, but got {} and {}",
    ),
    "aten::heaviside": same_dtype(
        "self",
        ("values",),
        "heaviside is not yet implemented for tensors with different dtypes.",
    ),
    "aten::linalg_cross": same_dtype("self", ("other",), "expected scalar type {} but found {}"),
    "aten::_cdist_forward": same_dtype("x1", ("x2",), "expected scalar type {} but found {}"),
    "aten::binary_cross_entropy": same_dtype(
        "self", ("target", "weight"), "Found dtype {1} but expected {0}"
    ),
    "aten::index_add": same_dtype(
        "self",
        ("source",),
        "index_add_(): self ({}) and source ({}) must have the same scalar type",
    ),
    "aten::index_reduce": same_dtype(
        "self",
        ("source",),
        "index_reduce_(): self ({}) and source ({}) must have the same scalar type",
    ),
    "aten::index_copy": same_dtype(
        "self",
        ("source",),
        "index_copy_(): self and source expected to have the same dtype, "
        "but got (self) {} and (source) {}",
    ),
    "aten::put": same_dtype(
        "self",
        ("source",),
        "put_(): self and source expected to have the same dtype, "
        "but got self.dtype = {} and source.dtype = {}",
    ),
    "aten::index_fill": refused(
        "index",
        not_in(torch.int64),
        "index_fill_(): Expected dtype int64 for index.",
        IndexError,
    ),
    "aten::masked_fill": refused(
        "mask",
        not_in(torch.bool),
        "masked_fill only supports boolean masks, but got mask with dtype {}",
    ),
    "aten::add": _factor,
    "aten::sub": all_of(_subtraction, _factor),
    "aten::rsub": all_of(_subtraction, _factor),
    "aten::_foreach_sub": _list_subtraction,
    "aten::_foreach_norm": _list_norm,
    "aten::sign": refused(
        "self",
        is_complex,
        "Unlike NumPy, torch.sign is not intended to support complex numbers. Please use "
        "torch.sgn instead.",
        NotImplementedError,
    ),
    "aten::all": _truth_out("all"),
    "aten::any": _truth_out("any"),
    "aten::index": _index_dtypes,
    "aten::index_put": _PUT,
    "aten::_index_put_impl": _PUT,
    "aten::index_select": refused(
        "index", not_in(*_INDEX), "index_select(): Expected dtype int32 or int64 for index"
    ),
    "aten::nll_loss_forward": _LIKELIHOOD,
    "aten::nll_loss2d_forward": _LIKELIHOOD,
    "aten::relu": refused("self", is_bool, "Boolean inputs not supported for relu"),
    "aten::sort": refused("self", is_complex, "Sort does not support complex dtypes"),
    **{
        f"aten::{op}": _clamp
        for op in (
            *("clamp", "clamp_min", "clamp_max", "_foreach_clamp_min", "_foreach_clamp_max"),
            *("_foreach_maximum", "_foreach_minimum"),
        )
    },
    "aten::pow": _integer_power,
    "aten::atan2": no_kernel("self", is_complex, "atan2_cpu"),
    "aten::bitwise_not": no_kernel("self", not_whole, "bitwise_not_cpu"),
    "aten::gcd": no_kernel("self", not_whole, "gcd_cpu"),
    "aten::lcm": no_kernel("self", not_whole, "lcm_cpu"),
    "aten::frac": no_kernel("self", not_real, "frac_cpu"),
    "aten::round": no_kernel("self", is_complex, "round_vml_cpu"),
    "aten::signbit": refused(
        "self",
        is_complex,
        "signbit is not implemented for complex tensors.",
        NotImplementedError,
    ),
    **{
        f"aten::{op}": refused(
            "self", is_complex, f"{op} is not supported for complex inputs", NotImplementedError
        )
        for op in ("ceil", "floor", "trunc")
    },
    **{
        f"aten::{op}": refused(
            "self", not_floating, "std and var only support floating point and complex dtypes"
        )
        for op in ("std", "var", "std_mean", "var_mean")
    },
    **NO_KERNELS,
    "aten::logcumsumexp": no_kernel("self", not_floating, "logcumsumexp_out_cpu"),
    "aten::uniform": no_kernel("self", not_floating, "check_uniform_bounds"),
    "aten::random": _random,
    "aten::rand": _drawn_dtype("check_uniform_bounds"),
    "aten::normal": _drawn_dtype("normal_kernel_cpu"),
    "aten::bernoulli": _bernoulli,
    "aten::_softmax_backward_data": no_kernel(
        "grad_output", not_real, "softmax_backward_lastdim_kernel_impl"
    ),
    "aten::_log_softmax_backward_data": no_kernel(
        "grad_output", not_real, "log_softmax_backward_lastdim_kernel_impl"
    ),
    "aten::convolution": refused_weights.convolution,
    "aten::convolution_overrideable": refused_weights.convolution,
    "aten::grid_sampler_2d": _GRID,
    "aten::grid_sampler_3d": _GRID,
    "aten::_embedding_bag": _BAG,
    "aten::_embedding_bag_forward_only": _BAG,
    "aten::_batch_norm_with_update": _BATCH_NORM,
    "aten::native_batch_norm": _BATCH_NORM,
    "aten::_native_batch_norm_legit": _BATCH_NORM,
    "aten::_native_batch_norm_legit_no_training": _BATCH_NORM,
    "aten::native_group_norm": all_of(
        no_kernel("input", is_complex, "GroupNormKernelImpl"), refused_weights.norm
    ),
    "aten::native_layer_norm": refused_weights.norm,
    "aten::histogram": same_dtype(
        "self",
        ("bins",),
        "torch.histogramdd: input tensor and bins tensors should have the same dtype, but got "
        "input with dtype {} and bins for dimension 0 with dtype {}",
    ),
    "aten::_histogramdd_from_bin_cts": no_kernel("self", not_real, "histogramdd"),
    "aten::_histogramdd_from_bin_tensors": no_kernel("self", not_real, "histogramdd"),
    "aten::max": all_of(
        no_kernel("self", is_complex, "max_all"), _reduces_nothing("max", whole=True)
    ),
    "aten::min": all_of(
        no_kernel("self", is_complex, "min_all"), _reduces_nothing("min", whole=True)
    ),
    "aten::_adaptive_avg_pool2d": no_kernel("self", not_real, "adaptive_avg_pool2d"),
    "aten::_adaptive_avg_pool3d": no_kernel("self", not_real, "adaptive_avg_pool3d_cpu"),
    "aten::adaptive_max_pool2d": no_kernel("self", not_real, "adaptive_max_pool2d"),
    "aten::adaptive_max_pool3d": no_kernel("self", not_real, "adaptive_max_pool3d_cpu"),
    "aten::amax": _reduces_nothing("amax", whole=True),
    "aten::amin": _reduces_nothing("amin", whole=True),
    "aten::median": _reduces_nothing("median", whole=False),
    "aten::nanmedian": _reduces_nothing("nanmedian", whole=False),
    "aten::kthvalue": _reduces_nothing("kthvalue", whole=True),
    "aten::mode": _reduces_nothing("mode", whole=True),
}

#: Checks by the op's name, for all its overloads.
CHECKS: dict[str, Check] = {
    name: all_of(*(t[name] for t in (DTYPES, refused_shapes.CHECKS) if name in t))
    for name in {**DTYPES, **refused_shapes.CHECKS}
}
