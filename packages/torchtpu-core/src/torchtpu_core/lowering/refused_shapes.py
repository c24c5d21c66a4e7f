# SPDX-License-Identifier: Apache-2.0
"""Shapes and counts that PyTorch's meta kernels accept and its CPU kernels refuse.

As `torchtpu_core.lowering.refusals`, whose table takes these checks in: metadata and
compile-time arguments only, CPU's class and words. Values are checked on the device
(`torchtpu_core.lowering.checks`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchtpu_core.lowering import refused_indices

Arguments = Mapping[str, Any]

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
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}
_TOO_MANY_CATEGORIES = 2**24
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
#: How many numbers from 0 on a floating point type tells apart, and how CPU writes it.
_WHOLE_NUMBERS = {
    torch.float16: (2**11 + 1, "2049"),
    torch.float32: (2**24 + 1, "2^24+1"),
    torch.float64: (2**53 + 1, "2^53+1"),
}


def dtype_name(dtype: torch.dtype) -> str:
    """What PyTorch's messages call a dtype: ``Float`` for ``torch.float32``."""
    return _NAMES.get(dtype, str(dtype).removeprefix("torch."))


def _inside_storage(arguments: Arguments) -> None:
    """`as_strided` may not reach beyond the storage."""
    tensor, sizes, strides = arguments["self"], arguments["size"], arguments["stride"]
    if 0 in sizes:
        return
    offset = arguments.get("storage_offset") or 0
    last = offset + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
    needed, held = (last + 1) * tensor.itemsize, tensor.numel() * tensor.itemsize
    if needed > held:
        raise RuntimeError(
            f"setStorage: sizes {list(sizes)}, strides {list(strides)}, storage offset {offset}, "
            f"and itemsize {tensor.itemsize} requiring a storage size of {needed} are out of "
            f"bounds for storage of size {held}"
        )


def _window(arguments: Arguments) -> None:
    if any(d <= 0 for d in arguments["dilation"]):
        raise RuntimeError("dilation should be greater than zero")
    padding = arguments["padding"]
    if isinstance(padding, (list, tuple)) and any(p < 0 for p in padding):
        raise RuntimeError("negative padding is not supported")


def _convolution(arguments: Arguments) -> None:
    _window(arguments)
    weight, bias, transposed = (arguments[name] for name in ("weight", "bias", "transposed"))
    groups = arguments["groups"]
    if groups > 0 and weight.shape[0] < groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be at least {groups} at dimension 0, "
            f"but got weight of size {list(weight.shape)} instead"
        )
    if transposed:
        _transposed_weight(arguments)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and list(bias.shape) != [channels]:
        raise RuntimeError(
            f"Given {'transposed=1, ' if transposed else ''}weight of size {list(weight.shape)}, "
            f"expected bias to be 1-dimensional with {channels} elements, but got bias of size "
            f"{list(bias.shape)} instead"
        )


def _transposed_weight(arguments: Arguments) -> None:
    tensor, weight = arguments["input"], arguments["weight"]
    groups, sizes = arguments["groups"], list(weight.shape)
    if tensor.ndim != weight.ndim:
        raise RuntimeError(
            f"Expected {weight.ndim}-dimensional input for {weight.ndim}-dimensional weight "
            f"{sizes}, but got {tensor.ndim}-dimensional input of size {list(tensor.shape)} instead"
        )
    if 0 in sizes[1:]:
        raise RuntimeError(f"non-empty weight tensor expected, but got: {sizes}")
    if groups > 0 and sizes[0] % groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, "
            f"but got weight of size [{sizes}] instead"
        )
    if tensor.shape[1] != sizes[0]:
        raise RuntimeError(
            f"Given transposed=1, weight of size {sizes}, expected input{list(tensor.shape)} to "
            f"have {sizes[0]} channels, but got {tensor.shape[1]} channels instead"
        )


def _multilabel_target(arguments: Arguments) -> None:
    tensor, target = arguments["self"], arguments["target"]
    fits = target.shape == tensor.shape or (tensor.ndim <= 1 and target.numel() == tensor.numel())
    if not fits:
        raise RuntimeError(
            f"inconsistent target size: {list(target.shape)} for input of size: "
            f"{list(tensor.shape)}"
        )


def _index_add_source(arguments: Arguments) -> None:
    tensor, source, dim = arguments["self"], arguments["source"], arguments["dim"]
    if source.ndim == 0 or tensor.ndim == 0:
        return

    def rest(x: torch.Tensor) -> list[int]:
        return [n for i, n in enumerate(x.shape) if i != dim % tensor.ndim]

    if source.ndim != tensor.ndim or rest(tensor) != rest(source):
        raise RuntimeError(
            "source tensor shape must match self tensor shape, excluding the specified dimension. "
            f"Got self.shape = {list(tensor.shape)} source.shape = {list(source.shape)}"
        )


def _multinomial(arguments: Arguments) -> None:
    tensor, count = arguments["self"], arguments["num_samples"]
    if not tensor.is_floating_point():
        raise RuntimeError(
            "multinomial only supports floating-point dtypes for input, got: "
            f"{dtype_name(tensor.dtype)}"
        )
    out = arguments.get("out")
    if out is not None and out.dtype != torch.int64:
        raise RuntimeError(f"multinomial expects Long tensor out, got: {dtype_name(out.dtype)}")
    if count <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if tensor.ndim and tensor.shape[-1] > _TOO_MANY_CATEGORIES:
        raise RuntimeError("number of categories cannot exceed 2^24")
    if tensor.ndim and count > tensor.shape[-1] and not arguments.get("replacement", False):
        raise RuntimeError(
            "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
        )


def _boundaries(arguments: Arguments) -> None:
    boundaries = arguments["boundaries"]
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")


def _parts(first: str, second: str) -> Callable[[Arguments], None]:
    """The two real operands of a complex number, and the dtype of its ``out=``."""

    def check(arguments: Arguments) -> None:
        left, right, out = arguments[first].dtype, arguments[second].dtype, arguments.get("out")
        if left != right:
            raise RuntimeError(
                f"Expected object of scalar type {dtype_name(left)} but got scalar type "
                f"{dtype_name(right)} for second argument"
            )
        if out is not None and left.is_floating_point and out.dtype != left.to_complex():
            raise RuntimeError(
                f"Expected object of scalar type {dtype_name(left.to_complex())} but got scalar "
                f"type {dtype_name(out.dtype)} for argument 'out'"
            )

    return check


def _extrema_outs(arguments: Arguments) -> None:
    for name in ("min", "max"):
        out = arguments.get(name)
        if isinstance(out, torch.Tensor) and out.dtype != arguments["self"].dtype:
            wanted, got = (dtype_name(d).lower() for d in (arguments["self"].dtype, out.dtype))
            raise RuntimeError(f"Expected out tensor to have dtype {wanted}, but got {got} instead")


def points_and_bins(arguments: Arguments) -> None:
    """`histogramdd` counts points, and its bins are what it says they are."""
    dims, bins = arguments["self"].ndim, arguments["bins"]
    if dims < 2:
        raise RuntimeError("torch.histogramdd: input tensor should have at least 2 dimensions")
    for dim, count in enumerate(bins):
        if isinstance(count, int) and count <= 0:
            raise RuntimeError(
                f"torch.histogram(): bins must be > 0, but got {count} for dimension {dim}"
            )


def _maximum_norm(arguments: Arguments) -> None:
    if arguments["maxnorm"] < 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {arguments['maxnorm']}")


def _mask_is_bool(arguments: Arguments) -> None:
    mask = arguments["mask"]
    if mask.dtype != torch.bool:
        raise RuntimeError(
            "masked_scatter_ only supports boolean masks, but got mask with dtype "
            f"{dtype_name(mask.dtype)}"
        )


def _fits_diagonal(arguments: Arguments) -> None:
    """`src` is written to the diagonal as it is, without broadcasting."""
    whole = torch.empty(arguments["self"].shape, device="meta")
    slot = whole.diagonal(arguments["offset"], arguments["dim1"], arguments["dim2"])
    if arguments["src"].shape != slot.shape:
        raise RuntimeError(
            "expected src to have a size equal to the slice of self. src size = "
            f"{list(arguments['src'].shape)}, slice size = {list(slot.shape)}"
        )


def _attention(arguments: Arguments) -> None:
    """Queries and keys have as many features."""
    query, key = arguments["query"], arguments["key"]
    features, others = query.shape[-1], key.shape[-1]
    if features != others:
        batch = query.shape[:-2].numel()
        raise RuntimeError(
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"[{batch}, {features}] but got: [{batch}, {others}]."
        )


def _quantised_range(arguments: Arguments) -> None:
    """The zero point, where the call gives it as a number, is a value of the range."""
    low, high, zero = (arguments[n] for n in ("quant_min", "quant_max", "zero_point"))
    if low > high:
        raise RuntimeError("`quant_min` should be less than or equal to `quant_max`.")
    if isinstance(zero, int) and not low <= zero <= high:
        raise RuntimeError("`zero_point` must be between `quant_min` and `quant_max`.")


def _quantised_channels(arguments: Arguments) -> None:
    """There is one scale and one zero point for each channel."""
    scale, zero = arguments["scale"], arguments["zero_point"]
    if scale.dtype not in (torch.float32, torch.bfloat16):
        found = dtype_name(scale.dtype)
        raise RuntimeError(f"Scale must be Float or BFloat16, found {found}")
    if zero.dtype not in (torch.int32, torch.float32, torch.float16):
        found = dtype_name(zero.dtype)
        raise RuntimeError(f"Zero-point must be Int32, Float or Half, found {found}")
    if scale.ndim != 1 or zero.ndim != 1:
        raise RuntimeError("scale and zero point need to be 1-D tensors")
    if scale.shape != zero.shape:
        raise RuntimeError("scale and zero-point need to have the same dimensions")
    x, axis = arguments["self"], arguments["axis"]
    if -x.ndim <= axis < x.ndim and x.shape[axis] != scale.shape[0]:
        raise RuntimeError(
            "dimensions of scale and zero-point are not consistent with input tensor"
        )
    _quantised_range(arguments)


def _permutation(arguments: Arguments) -> None:
    """Every position must exist in the dtype of the result."""
    n, out, dtype = arguments["n"], arguments.get("out"), arguments.get("dtype")
    if out is not None:
        dtype = out.dtype
    elif isinstance(dtype, int):  # the number that schemas have for a dtype
        dtype = torch.ops.aten.empty.memory_format([0], dtype=dtype, device="meta").dtype
    if dtype in _WHOLE_NUMBERS:
        most, told = _WHOLE_NUMBERS[dtype]
        if n > most:
            raise RuntimeError(f"n cannot be greater than {told} for {dtype_name(dtype)} type.")
    elif dtype in _INTEGERS and n - 1 > torch.iinfo(dtype).max:
        kind = str(dtype).removeprefix("torch.")
        raise RuntimeError(f"value cannot be converted to type {kind}_t without overflow")


#: Checks by the op's name, for all its overloads.
CHECKS: dict[str, Callable[[Arguments], None]] = {
    **refused_indices.CHECKS,
    "aten::as_strided_scatter": _inside_storage,
    "aten::diagonal_scatter": _fits_diagonal,
    "aten::convolution": _convolution,
    "aten::_convolution": _convolution,
    "aten::convolution_overrideable": _convolution,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "aten::multilabel_margin_loss_forward": _multilabel_target,
    "aten::fake_quantize_per_tensor_affine_cachemask": _quantised_range,
    "aten::fake_quantize_per_channel_affine_cachemask": _quantised_channels,
    "aten::index_add": _index_add_source,
    "aten::multinomial": _multinomial,
    "aten::randperm": _permutation,
    "aten::bucketize": _boundaries,
    "aten::complex": _parts("real", "imag"),
    "aten::polar": _parts("abs", "angle"),
    "aten::aminmax": _extrema_outs,
    "aten::masked_scatter": _mask_is_bool,
    "aten::_histogramdd_from_bin_cts": points_and_bins,
    "aten::_histogramdd_from_bin_tensors": points_and_bins,
}
