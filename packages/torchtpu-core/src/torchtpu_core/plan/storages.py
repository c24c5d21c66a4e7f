# SPDX-License-Identifier: Apache-2.0
"""Follows the storages of tensors without values: when they are made, resized and freed.

A storage is known by its address while it lives; its end is a weak reference's callback.
Storages that views share are one.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch

from torchtpu_core.plan.records import Block, Category, Phase, Recording


class Storages:
    """The live storages of a recording."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._live: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._next = 0
        self._closed = False

    def close(self) -> None:
        """Ends the recording: what is freed from now on was alive to its end."""
        self._closed = True

    def key(self, tensor: torch.Tensor, phase: Phase, line: str) -> int:
        """The identifier of a tensor's storage; a new one becomes a block."""
        storage = tensor.untyped_storage()
        address = storage._cdata
        known = self._live.get(address)
        if known is not None:
            return known[0]
        return self._add(storage, address, phase, line, tuple(tensor.shape))

    def resized(self, storage: Any, phase: Phase, line: str) -> None:
        """A storage got another size: its block ends and one of the new size begins."""
        known = self._live.get(storage._cdata)
        if known is None:
            return
        number, reference = known
        block = self._recording.blocks[number]
        size = storage.nbytes()
        if size == block.size_bytes and block.died is None:
            return
        if block.died is None:
            block.died = len(self._recording.ops)
        self._next += 1
        fresh = Block(size, len(self._recording.ops), phase, line, category=block.category)
        fresh.category = Category.GATHERED if block.category is None else block.category
        self._recording.blocks[self._next] = fresh
        self._live[storage._cdata] = (self._next, reference)

    def mark(self, tensor: torch.Tensor, category: Category) -> None:
        """Says what a tensor's storage holds."""
        known = self._live.get(tensor.untyped_storage()._cdata)
        if known is not None:
            self._recording.blocks[known[0]].category = category

    def _add(
        self, storage: Any, address: int, phase: Phase, line: str, shape: tuple[int, ...]
    ) -> int:
        self._next += 1
        number = self._next
        self._recording.blocks[number] = Block(
            storage.nbytes(), len(self._recording.ops), phase, line, shape=shape
        )

        def freed(_: object) -> None:
            known = self._live.pop(address, None)
            if known is not None and not self._closed:
                block = self._recording.blocks[known[0]]
                if block.died is None:
                    block.died = len(self._recording.ops)

        self._live[address] = (number, weakref.ref(storage, freed))
        return number
