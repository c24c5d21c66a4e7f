# SPDX-License-Identifier: Apache-2.0
"""Results that CPU lays out in another way than PyTorch's meta kernels state.

Those of synchronised batch norm, which the CPU does not have, are laid out as on CUDA.

A user sees the layout through `stride()` and `is_contiguous(memory_format=...)`. Only the
result's metadata is decided here; how XLA keeps the value is its own choice.

All other operators follow their meta kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from torchtpu_core.lowering.table import operator

#: How a result lies in memory: in a format, or as a tensor of its shape.
Layout: TypeAlias = torch.memory_format | torch.Tensor

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def suggested(tensor: torch.Tensor) -> torch.memory_format:
    """The format that an operator keeps, as ATen's `suggest_memory_format` finds it.

    Args:
        tensor: any shape; only batches of images or volumes can be channels last.
    """
    wanted = _CHANNELS_LAST.get(tensor.ndim)
    if wanted is None:
        return torch.contiguous_format
    if torch._prims_common.suggest_memory_format(tensor) is not wanted:
        return torch.contiguous_format
    return wanted


def _of_self(arguments: Sequence[Any]) -> torch.memory_format:
    return suggested(arguments[0])


def _of_input_or_weight(arguments: Sequence[Any]) -> torch.memory_format:
    found = suggested(arguments[0])
    return suggested(arguments[1]) if found is torch.contiguous_format else found


def _of_volume(arguments: Sequence[Any]) -> torch.memory_format:
    """A volume without a batch dimension has a layout too."""
    volume = arguments[0]
    if volume.ndim != 4:
        return suggested(volume)
    last = volume.unsqueeze(0).is_contiguous(memory_format=torch.channels_last_3d)
    is_last = last and not volume.is_contiguous()
    return torch.channels_last_3d if is_last else torch.contiguous_format


def _of_second(arguments: Sequence[Any]) -> torch.memory_format:
    """Of a gradient: that of the operator's input, which follows the result's gradient."""
    return suggested(arguments[1])


def _contiguous(arguments: Sequence[Any]) -> torch.memory_format:
    """Of what CPU makes without a look at its input's layout."""
    return torch.contiguous_format


def _pointwise(arguments: Sequence[Any]) -> torch.Tensor:
    """As every sum of two tensors; the meta kernel takes the operator apart and loses the order."""
    return torch.add(arguments[0], arguments[1])


def _like_first(arguments: Sequence[Any]) -> torch.Tensor:
    first: torch.Tensor = arguments[0]
    return first


#: The layout of an overload's results from its arguments, tensors on the meta device.
RULES: Mapping[str, Callable[[Sequence[Any]], Layout]] = {
    "aten::batch_norm_backward_elemt": _of_self,
    "aten::batch_norm_elemt": _of_self,
    "aten::binary_cross_entropy": _like_first,
    "aten::channel_shuffle": _of_self,
    "aten::convolution": _of_input_or_weight,
    "aten::_convolution": _of_input_or_weight,
    "aten::copysign.Tensor": _pointwise,
    "aten::div.Tensor_mode": _pointwise,
    "aten::floor_divide": _pointwise,
    "aten::glu_backward": _contiguous,
    "aten::huber_loss_backward": _contiguous,
    "aten::isin.Tensor_Scalar": _contiguous,
    "aten::isin.Tensor_Tensor": _contiguous,
    "aten::log_sigmoid_forward": _contiguous,
    "aten::max_pool3d_with_indices": _of_volume,
    "aten::max_unpool2d": _of_self,
    "aten::mse_loss_backward": _contiguous,
    "aten::native_batch_norm": _of_self,
    "aten::native_batch_norm_backward": _of_second,
    "aten::_native_batch_norm_legit": _of_self,
    "aten::_native_batch_norm_legit.no_stats": _of_self,
    "aten::pixel_shuffle": _of_self,
    "aten::pow.Scalar": _contiguous,
    "aten::reflection_pad2d": _of_self,
    "aten::reflection_pad2d_backward": _of_second,
    "aten::reflection_pad3d": _of_self,
    "aten::reflection_pad3d_backward": _of_second,
    "aten::replication_pad2d": _of_self,
    "aten::replication_pad2d_backward": _of_second,
    "aten::replication_pad3d": _of_self,
    "aten::replication_pad3d_backward": _of_second,
    "aten::roll": _of_self,
    "aten::rrelu_with_noise": _contiguous,
    "aten::rrelu_with_noise_functional": _contiguous,
    "aten::smooth_l1_loss_backward": _contiguous,
    "aten::special_xlog1py": _pointwise,
    "aten::xlogy.Tensor": _pointwise,
}

#: Those without a meta kernel: their result is like their first argument.
_LIKE_SELF = frozenset({"aten::batch_norm_backward_elemt", "aten::batch_norm_elemt"})
#: Those whose meta kernel divides by the number of elements, which may be none.
_LIKE_DIFFERENCE = frozenset(
    f"aten::{loss}_backward" for loss in ("huber_loss", "mse_loss", "smooth_l1_loss")
)


def results(overload: str, arguments: Sequence[Any]) -> list[torch.Tensor | None]:
    """The results of an overload of `RULES` on the meta device, laid out as on CPU.

    None stands for a gradient that nobody asked for.

    Args:
        overload: its full name.
        arguments: in schema order, tensors on the meta device; a number may be in a host tensor.
    """
    op = operator(overload)
    arguments = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in arguments]
    made = laid_out(overload, arguments, _stated(overload, arguments))
    if op._schema.arguments[-1].name != "output_mask":
        return made
    return [t if asked else None for t, asked in zip(made, arguments[-1], strict=True)]


def in_order(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """The arguments of a call in schema order, with defaults for those that are not given."""
    rest = op._schema.arguments[len(args) :]
    return [*args, *(kwargs.get(a.name, a.default_value) for a in rest)]


def _stated(overload: str, arguments: Sequence[Any]) -> Any:
    """Results of the shapes and dtypes that PyTorch's meta kernel states, where it can."""
    if overload in _LIKE_SELF:
        return arguments[0]
    if overload in _LIKE_DIFFERENCE:
        _, predicted, target, *_ = arguments
        return predicted - target
    op = operator(overload)
    named = list(zip(op._schema.arguments, arguments, strict=False))
    keywords = {a.name: value for a, value in named if a.kwarg_only}
    return op(*(value for a, value in named if not a.kwarg_only), **keywords)


def laid_out(overload: str, arguments: Sequence[Any], stated: Any) -> list[torch.Tensor | None]:
    """Results like the `stated` ones, one tensor or a tuple, laid out by the overload's rule."""
    wanted = RULES[overload](arguments)
    listed = stated if isinstance(stated, tuple) else (stated,)
    return [t if t is None else _like(t, wanted) for t in listed]


def _like(tensor: torch.Tensor, wanted: Layout) -> torch.Tensor:
    if isinstance(wanted, torch.Tensor):
        like = wanted if wanted.shape == tensor.shape else tensor
        return torch.empty_like(like, dtype=tensor.dtype)
    if wanted is torch.channels_last_3d and tensor.ndim == 4:
        return torch.empty_like(tensor.unsqueeze(0), memory_format=wanted).squeeze(0)
    if tensor.ndim not in _CHANNELS_LAST:  # statistics beside the images
        wanted = torch.contiguous_format
    return torch.empty_like(tensor, memory_format=wanted)
