# SPDX-License-Identifier: Apache-2.0
"""What the recorder of a plan asks about an operator's arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

DEVICE = "tpu"


def leaves(tree: Any, found: list[Any]) -> list[Any]:
    """The leaves of lists, tuples and dicts, as operators have; many times faster than pytree."""
    if isinstance(tree, (list, tuple)):
        for item in tree:
            leaves(item, found)
    elif isinstance(tree, dict):
        for item in tree.values():
            leaves(item, found)
    else:
        found.append(tree)
    return found


def asked_elements(args: Sequence[Any]) -> int:
    """The elements that a factory is asked for: its sizes are its list of integers."""
    sizes = [arg for arg in args if isinstance(arg, (list, tuple))]
    return max((math.prod(size) for size in sizes if _are_numbers(size)), default=0)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int) for value in values)


def nbytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements that an operator touches."""
    return tensor.numel() * tensor.element_size()


def mutated(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The device tensors that an operator without results writes to, by its schema."""
    found: list[Any] = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            leaves(value, found)
    return [t for t in found if isinstance(t, FakeTensor) and t.device.type == DEVICE]
