# SPDX-License-Identifier: Apache-2.0
"""What an operator computes, from its arguments: one table row per family.

Products and attention get their dimensions; everything else moves bytes. Operators that
only look at a storage, or make an empty one, are no work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchtpu_core.lowering.random import FEW_READERS
from torchtpu_core.simulator.rates import LANES

Shape = Sequence[int]
Products = tuple[tuple[int, int, int, int], ...]

FREE = frozenset(
    {
        "device",
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "set_",
        "detach",
        "detach_",
        "_unsafe_view",
        "record_stream",
        "_has_compatible_shallow_copy_type",
        "is_same_size",
        "_local_scalar_dense",
        "wait_tensor",
        "barrier",
        "lift_fresh",
        "alias",
        "_version",
        "is_pinned",
        "_reshape_alias",
        "is_coalesced",
        "_sparse_coo_tensor_with_dims_and_tensors",
    }
)
MOVES = frozenset(
    {
        "embedding",
        "embedding_dense_backward",
        "_embedding_bag",
        "_embedding_bag_backward",
        "_embedding_bag_dense_backward",
        "_embedding_bag_forward_only",
        "index_add",
        "index_add_",
        "index_copy",
        "index_copy_",
        "index_select",
        "index",
        "max_pool2d_with_indices",
        "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices",
        "max_pool3d_with_indices_backward",
        "index_put",
        "index_put_",
        "_index_put_impl_",
        "gather",
        "scatter",
        "scatter_",
        "scatter_add",
        "scatter_add_",
        "copy_",
        "_to_copy",
        "clone",
        "cat",
        "all_gather_copy_in",
        "split_with_sizes_copy",
        "chunk_cat",
        "cummax",
        "cummin",
        "cumprod",
        "cumsum",
        "logcumsumexp",
        "_coalesce",
        "sparse_mask",
        "contiguous",
    }
)
#: Operators that look at an operand's shape and type, not at its values.
LIKE = frozenset(
    {
        "full_like",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones_like",
        "rand_like",
        "randint_like",
        "randn_like",
        "zeros_like",
    }
)
#: Operators that do not read their last operand: gradients of pooling, which a TPU finds anew.
UNREAD = frozenset({"max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"})
#: Operators that read single rows of their first operand, however large it is.
GATHERS = frozenset({"embedding", "gather", "index", "index_select"})
BAGS = frozenset({"_embedding_bag", "_embedding_bag_forward_only"})
#: Operators that change single rows of their first operand, in its place.
SCATTERS = frozenset(
    {
        "_index_put_impl_",
        "index_add_",
        "index_copy_",
        "index_put_",
        "scatter_",
        "scatter_add_",
        "scatter_reduce_",
    }
)
#: Fourier transforms.
TRANSFORMS = frozenset({"_fft_c2c", "_fft_c2r", "_fft_r2c"})
#: Seen in libtpu's programs: one of 1,000 is a product, one of 4,096 is two.
_LONGEST_TRANSFORM = 1024
_BY_INDEX = frozenset({"gather", "scatter", "scatter_add", "scatter_reduce"})
_RANDOM = ("dropout", "rand", "normal", "bernoulli", "uniform", "exponential")
_DTYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "f32",
    torch.complex128: "f64",
    torch.int8: "int8",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}


def dtype_of(tensor: torch.Tensor) -> str:
    """The class of rate of a tensor's element type."""
    return _DTYPES.get(tensor.dtype, "bf16")


def touched_bytes(
    name: str, tensors: Sequence[torch.Tensor], read: Sequence[int], written: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes that an operator reads of each operand and writes of each result.

    Looking rows up, or changing some in their place, touches those and not the table.

    Args:
        name: the operator.
        tensors: its operands on the device.
        read: their bytes.
        written: those of the results, or of what is changed.
    """
    rows = 0
    if name in GATHERS and written:
        rows = written[0]
    elif name in BAGS:
        table, places = tensors[:2]
        rows = places.numel() * table[0].numel() * table.element_size()
    elif name in SCATTERS and len(read) > 1 and all(t.dtype != torch.bool for t in tensors[1:]):
        rows = max(read[1:])  # through a mask, all elements are touched
    if not rows or rows >= read[0]:
        return tuple(read), tuple(written)
    return (rows, *read[1:]), (rows,) if name in SCATTERS else tuple(written)


def is_compared(name: str, args: Sequence[Any]) -> bool:
    """Whether a TPU compares each row with the one index it has (`lowering.addressing`)."""
    if name.removesuffix("_") not in _BY_INDEX or args[0].dim() < 2:
        return False
    rows, dim, index = args[:3]
    sizes = list(rows.shape)
    sizes[dim] = 1
    return sizes == list(index.shape)


def products_of(name: str, args: Sequence[Any], out: Any) -> Products:
    """The matrix products of an operator, empty if it is none."""
    rule = _PRODUCTS.get(name)
    return rule(args, out) if rule is not None else ()


def drawn_of(name: str, results: Sequence[torch.Tensor]) -> float:
    """Random numbers that an operator draws: one for each element of its first result.

    The gradient of a dropout draws its mask again, as XLA computes it (`plan.recomputed`), but for
    one of more dimensions, which `lowering.random` has kept.
    """
    if not results or not any(word in name for word in _RANDOM):
        return 0.0
    if name.endswith("backward") and results[0].ndim > FEW_READERS:
        return 0.0
    return results[0].numel()


def _mm(args: Sequence[Any], out: Any) -> Products:
    left, right = args[0], args[1]
    return ((1, left.shape[0], left.shape[1], right.shape[1]),)


def _addmm(args: Sequence[Any], out: Any) -> Products:
    return _mm(args[1:3], out)


def _mv(args: Sequence[Any], out: Any) -> Products:
    return ((1, *args[0].shape, 1),)


def _addmv(args: Sequence[Any], out: Any) -> Products:
    return _mv(args[1:3], out)


def _packed(args: Sequence[Any], out: Any) -> Products:
    """Weights `[n, k]` of bytes."""
    return ((1, *args[0].shape, args[1].shape[0]),)


def _bmm(args: Sequence[Any], out: Any) -> Products:
    left, right = args[0], args[1]
    return ((left.shape[0], left.shape[1], left.shape[2], right.shape[2]),)


def _baddbmm(args: Sequence[Any], out: Any) -> Products:
    return _bmm(args[1:3], out)


def _grouped(args: Sequence[Any], out: Any) -> Products:
    left, right = args[0], args[1]
    groups = right.shape[0] if right.dim() == 3 else 1
    return ((groups, max(1, left.shape[-2] // groups), left.shape[-1], right.shape[-1]),)


def _convolution(args: Sequence[Any], out: Any) -> Products:
    """One product: rows are output places, columns output features, depth the taps.

    A transposed one is the gradient of another's image, whose output is its input.
    """
    weight, groups = args[1], int(args[8])
    if args[6]:
        return (_image_gradient(out, args[0], weight, groups),)
    places, depth, features = _taps(out, weight, groups)
    return ((groups, places, depth, features),)


def _taps(output: torch.Tensor, weight: torch.Tensor, groups: int) -> tuple[int, int, int]:
    """Places of a convolution's output, taps for each of them, and features of a group."""
    places = output.shape[0] * math.prod(output.shape[2:])
    return places, math.prod(weight.shape[1:]), max(1, weight.shape[0] // groups)


def _image_gradient(
    image: torch.Tensor, output: torch.Tensor, weight: torch.Tensor, groups: int
) -> tuple[int, int, int, int]:
    """Rows are the image's places, columns its features, depth the taps that reach a place."""
    places, taps, features = _taps(output, weight, groups)
    rows = max(1, image.shape[0] * math.prod(image.shape[2:]))
    columns = max(1, weight.shape[1])
    return groups, rows, max(1, round(places * features * taps / (rows * columns))), columns


def _convolution_backward(args: Sequence[Any], out: Any) -> Products:
    gradient, image, weight, transposed = args[0], args[1], args[2], args[7]
    groups, wanted = int(args[9]), args[10]
    places, depth, features = _taps(image if transposed else gradient, weight, groups)
    rows: list[tuple[int, int, int, int]] = []
    if wanted[0] and transposed:
        rows.append((groups, places, depth, features))
    elif wanted[0]:
        rows.append(_image_gradient(image, gradient, weight, groups))
    if wanted[1]:
        rows.append((groups, features, places, depth))
    return tuple(rows)


def is_strided(name: str, args: Sequence[Any]) -> bool:
    """Whether a convolution, or what makes its gradients, steps over pixels."""
    place = {"convolution": 3, "convolution_backward": 4}.get(name)
    return place is not None and any(step > 1 for step in args[place])


def _recurrent(args: Sequence[Any], out: Any) -> Products:
    """One product of all steps' inputs; then one of the state in each step."""
    return _recurrent_layer(args[0], args[2], args[4:6], args[8])


def _recurrent_backward(args: Sequence[Any], out: Any) -> Products:
    """As much for the gradients of states and inputs, and again for those of the weights."""
    forward = _recurrent_layer(args[3], args[5], args[7:9], args[9])
    gradients = [(times, rows, columns, depth) for times, rows, depth, columns in forward]
    weights = [(1, depth, times * rows, columns) for times, rows, depth, columns in forward]
    return (*gradients, *weights)


def _recurrent_layer(
    given: torch.Tensor, state: torch.Tensor, weights: Sequence[torch.Tensor], projection: Any
) -> Products:
    rows, batch = math.prod(given.shape[:-1]), state.shape[-2]
    steps = max(1, rows // max(1, batch))
    gates = [(1, rows, weights[0].shape[1], weights[0].shape[0])]
    gates.append((steps, batch, weights[1].shape[1], weights[1].shape[0]))
    if projection is not None:
        gates.append((steps, batch, projection.shape[1], projection.shape[0]))
    return tuple(gates)


def _transform(args: Sequence[Any], out: Any) -> Products:
    """The sums of Fourier transforms as XLA's TPU compiler makes them.

    A dimension is a product with a matrix of roots of unity, a large one in factors of 128: three
    products of complex numbers, two where one side is real.
    """
    given, dims = args[0], args[1]
    size_of = {dim: max(given.shape[dim], out.shape[dim]) for dim in dims}
    elements = min(given.numel(), out.numel())
    rows: list[tuple[int, int, int, int]] = []
    for dim in dims:
        is_real = not (given.is_complex() and out.is_complex()) and dim == dims[-1]
        for size in _factors(size_of[dim]):
            rows.append((2 if is_real else 3, max(1, elements // size), size, size))
    return tuple(rows)


def _factors(size: int) -> list[int]:
    """What a transform of `size` is split into: 128s, while it is long and they divide it."""
    found = []
    while size > _LONGEST_TRANSFORM and size % LANES == 0:
        found.append(LANES)
        size //= LANES
    return [*found, size]


_PRODUCTS: dict[str, Callable[[Sequence[Any], Any], Products]] = {
    "mm": _mm,
    "_scaled_mm": _mm,
    "_int_mm": _mm,
    "_weight_int8pack_mm": _packed,
    "addmm": _addmm,
    "_addmm_activation": _addmm,
    "addbmm": _baddbmm,
    "mv": _mv,
    "addmv": _addmv,
    "bmm": _bmm,
    "baddbmm": _baddbmm,
    "_grouped_mm": _grouped,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(TRANSFORMS, _transform),
    "recurrent_layer": _recurrent,
    "recurrent_layer_backward": _recurrent_backward,
}
