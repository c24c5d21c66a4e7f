# SPDX-License-Identifier: Apache-2.0
"""Tensors of a simulated device as CPU tensors over the same memory, for gloo to work on.

Memory that is written must be this tensor's alone: not that of an older version some
recorded op still reads, nor of a host view. Core says whether it is; if not, a recorded
identity op gets the tensor's memory if nothing will need it, and a copy if something does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torchtpu_core import calls as core_calls

from torchtpu_distributed import _C


class Source:
    """What a rank puts in: memory that is read.

    Args:
        tensor: a tensor of the device; it is kept, so that its memory is not given away.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = at_least_1d(tensor)
        self._array = core_calls.array_of(self._tensor, lend=False)

    def view(self) -> torch.Tensor:
        """Its elements in a row; waits until they are computed."""
        return _view(self._array, self._tensor)


class Target:
    """What a rank gets: memory that is written.

    Args:
        tensor: a tensor of the device.

    Attributes:
        array: the tensor's own array if gloo writes into it; None if the results are copied
            into the tensor afterwards, because it is part of a storage or not contiguous.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = at_least_1d(tensor)
        self.array: Any = None
        self._host: torch.Tensor | None = None
        if _is_whole(self._tensor):
            self.array = core_calls.own_array(self._tensor)
            if self.array is None:
                _exclusive()([self._tensor], [], [0], list)
                array = core_calls.array_of(self._tensor, lend=False)
                if array is core_calls.array_of(
                    self._tensor, lend=False
                ):  # not one reshaped for us
                    self.array = array

    def view(self) -> torch.Tensor:
        """Memory for its elements, in a row."""
        if self.array is not None:
            return _view(self.array, self._tensor)
        if self._host is None:
            self._host = torch.empty(self._tensor.numel(), dtype=self._tensor.dtype, device="cpu")
        return self._host

    def filled(self) -> torch.Tensor:
        """The memory, with the present elements in it."""
        view = self.view()
        if self.array is None:
            present = Source(self._tensor)  # keeps the memory that the view shows
            view.copy_(present.view())
        return view

    def finish(self) -> None:
        """Give the tensor what was written."""
        if self._host is not None:
            with torch.no_grad():
                self._tensor.copy_(self._host.view(self._tensor.shape))


def storage_key(tensor: torch.Tensor) -> int:
    """A number that tensors on the same memory share, while one of them lives."""
    return int(tensor.untyped_storage()._cdata)


def at_least_1d(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its history, a scalar as one element."""
    tensor = tensor.detach()
    return tensor.view(1) if tensor.dim() == 0 else tensor


def _view(array: Any, tensor: torch.Tensor) -> torch.Tensor:
    # Without a reference of its own: a thread of gloo's drops it late, and until then the
    # memory would not be the tensor's alone. The Source or Target has one.
    array.block_until_ready()
    return _C.view_of(array.unsafe_buffer_pointer(), tensor.numel(), tensor.dtype, None)


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes


@functools.cache
def _exclusive() -> Callable[..., Any]:
    name = "c10d::exclusive_memory"
    return core_calls.device_call(name, lambda arrays: (arrays[0],), cache_key=name, alone=True)
