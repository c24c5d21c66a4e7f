# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel without values: buckets of gradients that are summed as they fill.

DDP's own reducer is C++ that looks into tensors; here hooks on the parameters count bytes
and start an all-reduce of a bucket's size, in the order in which gradients come, which is
what the reducer does. Not modelled: unused parameters, `no_sync`, buffers' broadcasts.
"""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch.nn.parallel import distributed as module

_FIRST_BUCKET_BYTES = 2**20


def replace(stack: contextlib.ExitStack) -> None:
    """Replaces what needs other ranks or values, until the stack is left."""
    for name in ("_verify_param_shape_across_processes", "_sync_module_states"):
        stack.enter_context(mock.patch.object(module, name, _nothing))
    cls = module.DistributedDataParallel
    stack.enter_context(mock.patch.object(cls, "_ddp_init_helper", _init))
    stack.enter_context(mock.patch.object(cls, "_sync_buffers", _nothing))


def _nothing(*_: Any, **__: Any) -> None:
    """Stands in for what needs other ranks."""


def _init(self: Any, parameters: list[torch.nn.Parameter], *_: Any, **__: Any) -> None:
    """Registers the hooks in place of building the reducer."""
    self.reducer, self.logger = mock.MagicMock(), mock.MagicMock()
    self.reducer._rebuild_buckets.return_value = False
    buckets = _Buckets(self.bucket_bytes_cap)
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(buckets.take)


class _Buckets:
    """Gradients waiting to be summed."""

    def __init__(self, cap_bytes: int) -> None:
        self._cap_bytes = cap_bytes
        self._waiting: list[torch.Tensor] = []
        self._limit = _FIRST_BUCKET_BYTES

    def take(self, parameter: torch.Tensor) -> None:
        """A gradient is ready."""
        assert parameter.grad is not None
        if not self._waiting:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._waiting.append(parameter.grad)
        if sum(g.numel() * g.element_size() for g in self._waiting) >= self._limit:
            self._sum()

    def _sum(self) -> None:
        gradients, self._waiting = self._waiting, []
        if gradients:
            bucket = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(bucket)
            torch._foreach_copy_(gradients, _parts(bucket, gradients))
            self._limit = self._cap_bytes

    def _finish(self) -> None:
        """The backward pass is over: the last bucket goes too."""
        self._sum()
        self._limit = _FIRST_BUCKET_BYTES


def _parts(bucket: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Views of a bucket, shaped as its gradients."""
    parts = bucket.split([gradient.numel() for gradient in like])
    return [part.view(gradient.shape) for part, gradient in zip(parts, like, strict=True)]
