# SPDX-License-Identifier: Apache-2.0
"""Results that CPU lays out in another way than PyTorch's meta kernels state.

Those of synchronised batch norm, which the CPU does not have, are laid out as on CUDA.

A user sees the layout through `stride()` and `is_contiguous(memory_format=...)`. Only the
result's metadata is decided here; how XLA keeps the value is its own choice.

All other operators follow their meta kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchtpu_core.lowering.table import operator

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


#: The format of an overload's result from its arguments, tensors on the meta device.
RULES: Mapping[str, Callable[[Sequence[Any]], torch.memory_format]] = {
    "aten::batch_norm_backward_elemt": _of_self,
    "aten::batch_norm_elemt": _of_self,
    "aten::channel_shuffle": _of_self,
    "aten::convolution": _of_input_or_weight,
    "aten::_convolution": _of_input_or_weight,
    "aten::glu_backward": _contiguous,
    "aten::huber_loss_backward": _contiguous,
    "aten::log_sigmoid_forward": _contiguous,
    "aten::max_pool3d_with_indices": _of_volume,
    "aten::max_unpool2d": _of_self,
    "aten::mse_loss_backward": _contiguous,
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
    "aten::smooth_l1_loss_backward": _contiguous,
}

#: Those without a meta kernel: their result is like their first argument.
_LIKE_SELF = frozenset({"aten::batch_norm_backward_elemt", "aten::batch_norm_elemt"})


def results(overload: str, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """The results of an overload of `RULES` on the meta device, laid out as on CPU.

    Args:
        overload: its full name.
        arguments: in schema order, tensors on the meta device.
    """
    stated = arguments[0] if overload in _LIKE_SELF else operator(overload)(*arguments)
    return laid_out(overload, arguments, stated)


def laid_out(overload: str, arguments: Sequence[Any], stated: Any) -> list[torch.Tensor]:
    """Results like the `stated` ones, one tensor or a tuple, laid out by the overload's rule."""
    wanted = RULES[overload](arguments)
    return [_like(t, wanted) for t in (stated if isinstance(stated, tuple) else (stated,))]


def _like(tensor: torch.Tensor, wanted: torch.memory_format) -> torch.Tensor:
    if wanted is torch.channels_last_3d and tensor.ndim == 4:
        return torch.empty_like(tensor.unsqueeze(0), memory_format=wanted).squeeze(0)
    return torch.empty_like(tensor, memory_format=wanted)
