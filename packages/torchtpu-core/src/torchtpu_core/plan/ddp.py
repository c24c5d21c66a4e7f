# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel without values: buckets of gradients that are summed as they fill.

DDP's own reducer is C++ that looks into tensors; here hooks on the parameters count bytes
and start an all-reduce of a bucket's size, in the order in which gradients come; the sums are
read when the backward pass is over. That is what the reducer does. As there, a backward pass
sums if its forward pass was to be followed by that: not within `no_sync`. Hooks of
communication run on the buckets, and are waited for at once.
Not modelled: unused parameters, buffers' broadcasts, what hooks send behind the backward pass.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
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
    stack.enter_context(mock.patch.object(cls, "register_comm_hook", _register_hook))


def _nothing(*_: Any, **__: Any) -> None:
    """Stands in for what needs other ranks."""


def _init(self: Any, parameters: list[torch.nn.Parameter], *_: Any, **__: Any) -> None:
    """Registers the hooks in place of building the reducer."""
    self.reducer, self.logger = mock.MagicMock(), mock.MagicMock()
    self.reducer._rebuild_buckets.return_value = False
    buckets = _Buckets(self)
    self.reducer.buckets = buckets
    for parameter in parameters:
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(buckets.take)


def _register_hook(self: Any, state: object, hook: Callable[..., Any]) -> None:
    """Has buckets summed by a hook of the user's, such as one that sends bfloat16."""
    self.reducer.buckets.hook = lambda bucket: hook(state, bucket)


class _Bucket:
    """A bucket as hooks of communication see it."""

    def __init__(self, buffer: torch.Tensor, gradients: list[torch.Tensor]) -> None:
        self._buffer, self._gradients = buffer, gradients

    def buffer(self) -> torch.Tensor:
        """All gradients, one after another."""
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Puts other values in their place."""
        self._buffer = buffer

    def gradients(self) -> list[torch.Tensor]:
        """Views of the buffer, shaped as the gradients."""
        return _parts(self._buffer, self._gradients)

    def index(self) -> int:
        """The bucket's number; hooks compare it with 0 to know a new pass."""
        return 0

    def is_last(self) -> bool:
        """Whether no other follows, which is not known."""
        return False


class _Sum:
    """An all-reduce that is through; fake groups' work has futures without results."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def wait(self) -> bool:
        """Nothing is left to wait for."""
        return True

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """The result, in a list as that of a real group."""
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future.set_result([self._tensor])
        return future


def _summed(all_reduce: Callable[..., Any]) -> Callable[..., _Sum]:
    def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> _Sum:
        all_reduce(tensor, *args, **kwargs)
        return _Sum(tensor)

    return call


class _Buckets:
    """Gradients waiting to be summed."""

    def __init__(self, ddp: Any) -> None:
        self._ddp = weakref.ref(ddp)
        self._cap_bytes: int = ddp.bucket_bytes_cap
        self._group = ddp.process_group
        self.hook: Callable[[_Bucket], Any] | None = None
        self._as_view: bool = ddp.gradient_as_bucket_view
        self._waiting: list[torch.nn.Parameter] = []
        self._sums: list[tuple[list[torch.Tensor], torch.Tensor]] = []
        self._limit = _FIRST_BUCKET_BYTES

    def take(self, parameter: torch.Tensor) -> None:
        """A gradient is ready."""
        assert parameter.grad is not None
        ddp = self._ddp()
        if ddp is not None and not ddp.require_forward_param_sync:
            return  # its forward pass was within no_sync
        if not self._waiting:
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        self._waiting.append(parameter)
        if sum(p.grad.nbytes for p in self._waiting if p.grad is not None) >= self._limit:
            self._sum()

    def _sum(self) -> None:
        """Starts the sum of the gradients that wait."""
        parameters, self._waiting = self._waiting, []
        gradients = [p.grad for p in parameters if p.grad is not None]
        if not gradients:
            return
        bucket = torch.cat([gradient.flatten() for gradient in gradients])
        if self._as_view:
            gradients = _parts(bucket, gradients)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
        self._limit = self._cap_bytes
        if self.hook is not None:
            with mock.patch.object(dist, "all_reduce", _summed(dist.all_reduce)):
                bucket = self.hook(_Bucket(bucket, gradients)).wait()
            torch._foreach_copy_(gradients, _parts(bucket, gradients))
            return
        dist.all_reduce(bucket, group=self._group)
        if not self._as_view:
            self._sums.append((gradients, bucket))

    def _finish(self) -> None:
        """The backward pass is over: the last bucket goes too, and the sums are read."""
        self._sum()
        self._limit = _FIRST_BUCKET_BYTES
        sums, self._sums = self._sums, []
        for gradients, bucket in sums:
            torch._foreach_copy_(gradients, _parts(bucket, gradients))


def _parts(bucket: torch.Tensor, like: list[torch.Tensor]) -> list[torch.Tensor]:
    """Views of a bucket, shaped as its gradients."""
    parts = bucket.split([gradient.numel() for gradient in like])
    return [part.view(gradient.shape) for part, gradient in zip(parts, like, strict=True)]
