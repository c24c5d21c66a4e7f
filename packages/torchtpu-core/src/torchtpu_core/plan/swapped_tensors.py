# SPDX-License-Identifier: Apache-2.0
"""Swaps tensors without values: for modules that move to the device, and ``tensor.data = other``.

`torchtpu_core.plan.session` puts both in place of PyTorch's while a script runs. What storages
hold is not followed here.
"""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

_MISSING = object()


def swap(first: torch.Tensor, second: torch.Tensor) -> None:
    """Swaps two tensors as ``torch.utils.swap_tensors``, weak references or not.

    The fake mode's memory of converted tensors is a weak reference, and harmless here.
    """
    slots = [(name, _taken(first, name), _taken(second, name)) for name in _slots(first, second)]
    first.__class__, second.__class__ = second.__class__, first.__class__
    first.__dict__, second.__dict__ = second.__dict__, first.__dict__
    for name, of_first, of_second in slots:
        for tensor, value in ((first, of_second), (second, of_first)):
            if value is not _MISSING:
                setattr(tensor, name, value)
    torch._C._swap_tensor_impl(first, second)


def _slots(*tensors: torch.Tensor) -> set[str]:
    """Names of the slots of the tensors' classes, as DTensor has."""
    return {
        name
        for tensor in tensors
        for cls in type(tensor).__mro__
        for name in getattr(cls, "__slots__", ())
        if name not in ("__dict__", "__weakref__")
    }


def _taken(tensor: torch.Tensor, name: str) -> Any:
    """The value of a slot, taken out of it."""
    value = getattr(tensor, name, _MISSING)
    if value is not _MISSING:
        with contextlib.suppress(AttributeError):
            delattr(tensor, name)
    return value


def data_assignable() -> Any:
    """``tensor.data = other`` works where `other` has no values, as FSDP moves parameters."""
    real = torch._C.TensorBase.data

    def assign(self: torch.Tensor, value: torch.Tensor) -> None:
        if not isinstance(value, FakeTensor) or self.is_meta:
            real.__set__(self, value)
            return
        fresh = value.detach()
        if isinstance(self, nn.Parameter):
            fresh = nn.Parameter(fresh, requires_grad=self.requires_grad)
        swap(self, fresh)

    whole = property(lambda self: real.__get__(self), assign)
    return mock.patch.object(torch.Tensor, "data", whole, create=True)
