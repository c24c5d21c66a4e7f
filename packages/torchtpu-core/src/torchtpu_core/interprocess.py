# SPDX-License-Identifier: Apache-2.0
"""Tensors of the device in queues and arguments of `torch.multiprocessing`: they travel as copies.

A process has a device of its own and no other process can map its buffers, as CUDA's can. So a
storage goes as bytes to the same device index of the receiver, which may outlive the sender. What
one process writes afterwards the other does not see; the first copy says so.

`multiprocessing` keeps a table of functions that take objects apart. Ours takes the place of
PyTorch's for storages, and hands every storage of another device on to it.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy


def register() -> None:
    """Put our function into the table, on top of PyTorch's."""
    from torch.multiprocessing import reductions

    ForkingPickler.register(
        torch.UntypedStorage, functools.partial(_reduce, reductions.reduce_storage)
    )


def _reduce(others: Callable[[Any], Any], storage: torch.UntypedStorage) -> Any:
    if storage.device.type != "tpu":
        return others(storage)
    _tell_once()
    octets = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage.cpu()).numpy()
    return _rebuild, (octets, storage.device.index)


def _rebuild(octets: numpy.ndarray[Any, Any], index: int) -> torch.UntypedStorage:
    return torch.from_numpy(octets).untyped_storage().to(device=torch.device("tpu", index))


@functools.cache
def _tell_once() -> None:
    warnings.warn(
        "<TorchTpu/sharing> tensors of device 'tpu' reach another process as copies: what one "
        "process writes to them later, the other does not see. Send the new values, or use "
        "torch.distributed.",
        UserWarning,
        stacklevel=2,
    )
