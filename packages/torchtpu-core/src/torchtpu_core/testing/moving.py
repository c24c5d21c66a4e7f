# SPDX-License-Identifier: Apache-2.0
"""Copying the operands of one call to the device: what shares memory still does."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


class Mover:
    """Copies the tensors of one call; strides, offsets and shared storages are kept.

    A tensor that is passed twice is one on the device too: an ``out=`` may be an operand.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def move(self, value: Any) -> Any:
        """`value` with its CPU tensors and devices replaced by those of the device."""
        if isinstance(value, str) and value == "cpu":
            return "tpu"
        return pytree.tree_map(self._move_leaf, value)

    def sample(self, sample: Any) -> Any:
        """A `SampleInput` of the operator database on the device."""
        moved = type(sample)(
            self.move(sample.input),
            args=tuple(self.move(a) for a in sample.args),
            kwargs={k: "tpu" if k == "device" else self.move(v) for k, v in sample.kwargs.items()},
        )
        moved.output_process_fn_grad = sample.output_process_fn_grad
        return moved

    def _move_leaf(self, value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("tpu") if value.type == "cpu" else value
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            return value
        if id(value) not in self._seen:
            self._seen[id(value)] = value, self._copied(value)  # `value` keeps its id
        return self._seen[id(value)][1]

    def _copied(self, value: torch.Tensor) -> torch.Tensor:
        if value.layout != torch.strided or value.is_conj() or value.is_neg():
            return value.detach().to("tpu").requires_grad_(value.requires_grad)
        flat = self._storage(value)
        moved = flat.as_strided(value.shape, value.stride(), value.storage_offset())
        return moved.requires_grad_(value.requires_grad)

    def _storage(self, value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        key = (storage._cdata, value.dtype)
        if key not in self._storages:
            flat = torch.empty(0, dtype=value.dtype).set_(storage)
            self._storages[key] = flat.to("tpu")
        return self._storages[key]
