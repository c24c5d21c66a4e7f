# SPDX-License-Identifier: Apache-2.0
"""What a plan puts in place of functions that need values, other ranks or a compiler.

Each is a context manager's patch: the originals come back when the plan is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.pipelining.stage import PipelineStage

from torchtpu_core.plan import placeholders
from torchtpu_core.plan.exchange import Alone, Mailbox


def enter_all(stack: contextlib.ExitStack) -> None:
    """Puts every stand-in in place until the stack is left."""
    for patch in (_compile(), _module_compile(), _loading_in_process()):
        stack.enter_context(patch)
    stack.enter_context(_formatting())
    stack.enter_context(_listing())
    for name, replacement in _OBJECTS.items():
        stack.enter_context(mock.patch.object(dist, name, replacement))


def _compile() -> Any:
    """``torch.compile`` gives the function back: operators are fused by the plan's own rule."""

    def compile_(model: Callable[..., Any] | None = None, **_: Any) -> Any:
        return model if model is not None else (lambda function: function)

    return mock.patch.object(torch, "compile", compile_)


def _module_compile() -> Any:
    def compile_(self: nn.Module, *_: Any, **__: Any) -> None:
        """Compiles nothing."""

    return mock.patch.object(nn.Module, "compile", compile_)


def _formatting() -> Any:
    """A number of the device is formatted as its placeholder, as in ``f"{loss:.3f}"``."""
    real = torch.Tensor.__format__

    def __format__(self: torch.Tensor, spec: str) -> str:
        if isinstance(self, FakeTensor) and not self.dim():
            return format(self.item(), spec)
        return real(self, spec)

    return mock.patch.object(torch.Tensor, "__format__", __format__)


def _listing() -> Any:
    """``tolist()`` reads a tensor at once; PyTorch's of fake tensors reads number after number."""
    real = FakeTensor.tolist

    def tolist(self: FakeTensor) -> Any:
        host = self.cpu() if self.dim() else self
        if isinstance(host, FakeTensor):
            return real(self)
        return host.fill_(placeholders.of(self)).tolist()

    return mock.patch.object(FakeTensor, "tolist", tolist)


def _loading_in_process() -> Any:
    """Data loaders make no processes: a child would run without the recorder."""
    real = torch.utils.data.DataLoader.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["num_workers"] = 0
        for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context"):
            kwargs.pop(name, None)
        kwargs["pin_memory"] = False
        real(self, *args, **kwargs)

    return mock.patch.object(torch.utils.data.DataLoader, "__init__", __init__)


def _all_gather_object(object_list: list[Any], obj: Any, *_: Any, **__: Any) -> None:
    """Every rank says what this one does."""
    object_list[:] = [obj] * len(object_list)


def _gather_object(obj: Any, object_gather_list: list[Any] | None = None, **_: Any) -> None:
    """Every rank says what this one does."""
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _broadcast_object_list(*_: Any, **__: Any) -> None:
    """This rank has the objects already, or gets none."""


def _batch_isend_irecv(p2p_op_list: list[Any]) -> list[Any]:
    """Messages one by one: the fake group has no backend that would join them."""
    works = []
    for one in p2p_op_list:
        peer = {"group_dst" if one.op is dist.isend else "group_src": one.group_peer}
        works.append(one.op(one.tensor, group=one.group, tag=one.tag, **peer))
    return [work for work in works if work is not None]


def _barrier(*_: Any, **__: Any) -> None:
    """Nobody else is waited for."""


_OBJECTS = {
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "broadcast_object_list": _broadcast_object_list,
    "barrier": _barrier,
    "batch_isend_irecv": _batch_isend_irecv,
}


def exchange(stack: contextlib.ExitStack, mailbox: Mailbox | Alone) -> None:
    """Has ranks exchange objects by a mailbox until the stack is left."""

    def send(object_list: list[Any], dst: int = 0, group: Any = None, **more: Any) -> None:
        mailbox.send(_rank(dst, group, more.get("group_dst")), object_list)

    def receive(object_list: list[Any], src: int = 0, group: Any = None, **more: Any) -> int:
        source = _rank(src, group, more.get("group_src"))
        object_list[:] = mailbox.receive(source)
        return source

    for name, replacement in (("send_object_list", send), ("recv_object_list", receive)):
        stack.enter_context(mock.patch.object(dist, name, replacement))
    for name, vote in (("_warmup_forward_vote", _vote), ("_warmup_backward_result", _own_vote)):
        stack.enter_context(mock.patch.object(PipelineStage, name, vote))


def _rank(rank: int, group: Any, in_group: int | None) -> int:
    return rank if in_group is None else dist.get_global_rank(group, in_group)


def _vote(self: Any, has_backward: bool, received_acc: Any = None) -> torch.Tensor:
    """Whether this stage was told all shapes. Stages of one script are told alike."""
    needs = InferenceMode.needs_dynamic(self._user_meta, has_backward)
    vote = torch.tensor([0 if needs else 1], dtype=torch.int32)
    return vote if received_acc is None else received_acc * vote


def _own_vote(self: Any, received_result: Any = None) -> torch.Tensor:
    return _vote(self, True) if received_result is None else received_result
