# SPDX-License-Identifier: Apache-2.0
"""Making the backend of a process group, as `init_process_group` and `new_group` ask."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.distributed_c10d import default_pg_timeout
from torchtpu_core.calls import user_line
from torchtpu_core.env_vars import settings
from torchtpu_core.runtime.collector import uncollected

from torchtpu_distributed import _C, active, gloo_backends, members, world
from torchtpu_distributed.backend import Backend
from torchtpu_distributed.cpu_tensors import CpuTensors
from torchtpu_distributed.errors import CollectiveMismatchError, ProcessGroupError
from torchtpu_distributed.group import Group
from torchtpu_distributed.host_path import PATIENCE_S, HostPath
from torchtpu_distributed.host_running import HostRunner
from torchtpu_distributed.pending import Pending
from torchtpu_distributed.running import Runner

#: Collectives of CPU tensors, and messages, of a rank that others can still compare with theirs.
_CPU_RINGS = (16, 32)
#: How PyTorch names groups that only their ranks know: a digest of the ranks and of the number of
#: groups the process is in, which differs between processes and returns when a group ends.
_DIGEST = re.compile("[0-9a-f]{40}")


def create(options: Any, backend_name: str) -> Any:
    """A c10d backend for the ranks of `options`.

    Args:
        options: torch's ``_DistributedBackendOptions``.
        backend_name: the name of the backend that the user has asked for.
    """
    timeout_s = _seconds(options.timeout)
    store, rank, size = options.store, options.group_rank, options.group_size
    ranks = tuple(options.global_ranks_in_group)
    is_world = not ranks
    if is_world:
        _check_first()
        with uncollected():  # Ctrl-C in a callback of the collector, such as JAX's, is lost
            serve_dtensors()
        return make(
            world.start(store, rank, size, timeout_s),
            options.group_id or "world",
            tuple(range(size)),
            timeout_s,
            backend_name,
            is_world=True,
        )
    if active.world is None:
        raise ProcessGroupError(
            "a tpu group needs a default process group that serves tpu tensors, and the present "
            "one does not: call init_process_group() without a backend, or with "
            "'cpu:gloo,tpu:tpu_dist'."
        )
    return make(active.world, options.group_id, ranks, timeout_s, backend_name, is_world=False)


def serve_whole_group(caller: Mapping[str, Any], backend: Any) -> None:
    """Make a group of no backend's name, or of several, usable as a whole.

    In torch 2.13 `init_process_group()` gives a group one backend, for the accelerator,
    and then declares gloo its default; with ``cpu:gloo,tpu:tpu_dist`` it declares none.
    DistributedDataParallel fails on the one, and CPU tensors too. The group is not among
    the arguments of a backend's creator, only among its caller's variables. Goes when
    torch sets the default to what it has made.

    Args:
        caller: variables of torch's ``_new_process_group_helper``.
        backend: what is being made for it.
    """
    group, name = caller.get("pg"), str(caller.get("backend"))
    if not isinstance(group, dist.ProcessGroup):
        return
    _give_ranks(group, caller["global_ranks_in_group"])
    kind = dist.ProcessGroup.BackendType.CUSTOM
    if name == dist.Backend.UNDEFINED:
        group._register_backend(torch.device("cpu"), kind, backend)
    if name == dist.Backend.UNDEFINED or ":" in name:
        group._set_default_backend(kind)


def _give_ranks(group: dist.ProcessGroup, ranks: list[int]) -> None:
    """Let gloo know the ranks of a default group, without which a split of it may end the process.

    PyTorch gives it none. Of the backends of gloo in a process only the first then knows them, and
    here that is one of ours.

    Args:
        group: the group, with the backends it has so far.
        ranks: torch's list for those that it gets after this one; empty for a default group.
    """
    if ranks:
        return
    ranks.extend(range(group.size()))
    for device in group._device_types:
        found = group._get_backend(device)
        if isinstance(found, dist.ProcessGroupGloo):
            found.options.global_ranks_in_group = ranks


def make(
    of: world.World,
    name: str,
    ranks: tuple[int, ...],
    timeout_s: float,
    backend_name: str,
    *,
    is_world: bool,
) -> Any:
    """A c10d backend for some ranks of a world; blocks until all of them make it.

    Args:
        of: the world.
        name: PyTorch's name of the group.
        ranks: global ranks in group order.
        timeout_s: seconds a collective may take.
        backend_name: how the user calls the backend.
        is_world: whether the world ends with this backend.
    """
    if _DIGEST.fullmatch(name):
        name = _shared_name(of, ranks)
    purpose = members.purpose(ranks)
    group = Group(of, name, ranks, timeout_s, is_world=is_world)
    of_cpu = Group(of, f"{name} (CPU tensors)", ranks, timeout_s, rings=_CPU_RINGS)

    def connect(use: str, patience_s: float) -> dist.ProcessGroupGloo:
        # gloo waits in the store, so another group, whose turn it may be on another rank, must not
        # need the connection.
        with of.connections.one() as store:
            prefixed = dist.PrefixStore(f"gloo/{name}/{use}", store)
            return gloo_backends.backend(prefixed, group.rank, group.size, of.address, patience_s)

    def meet() -> tuple[dist.ProcessGroupGloo, _C.Mailbox | None] | str:
        if not is_world:
            with of.connections.one() as store:
                if said := members.difference(store, of.rank, name, ranks, purpose):
                    return said
        return connect("host", timeout_s + PATIENCE_S), of_cpu.share_memory()

    meeting = Pending(
        group=name,
        ranks=ranks,
        seq=0,
        what="init_process_group" if is_world else f"new_group of {purpose}",
        line=user_line(),
        timeout_s=timeout_s,
    )
    met = of.ledger.meet(meeting, meet)
    if isinstance(met, str):
        raise CollectiveMismatchError(met)
    gloo, mailbox = met
    host = HostRunner(group, lambda: connect("collectives", group.timeout_s + PATIENCE_S))
    if mailbox is not None:
        host.direct.share(mailbox)
    runner = host if of.by_gloo else Runner(group)
    path = HostPath(group, host, gloo)
    backend = Backend(group, runner, path, CpuTensors(of_cpu), backend_name, is_world)
    return _C.make_backend(
        backend_name, group.rank, group.size, timeout_s, backend, gloo, host.direct
    )


def _shared_name(of: world.World, ranks: tuple[int, ...]) -> str:
    """A name that all ranks give a group, whatever other groups each of them is in.

    Goes when PyTorch's own names do so.
    """
    number = of.made[ranks] = of.made.get(ranks, 0) + 1
    return hashlib.sha1(f"{ranks} {number}".encode(), usedforsecurity=False).hexdigest()


def serve_dtensors() -> None:
    """Register what DTensors of the device need besides a process group."""
    from torchtpu_distributed import mixed_parameters, sharded_attention, sharded_one_hot

    sharded_attention.register()
    sharded_one_hot.register()
    mixed_parameters.register()


def _check_first() -> None:
    if active.world is not None:
        raise ProcessGroupError(
            "this process is in a process group with tpu tensors already: call "
            "destroy_process_group() first."
        )


def _seconds(timeout: timedelta) -> float:
    """The user's timeout; PyTorch's default gives way to that of the default group, if it exists.

    A device mesh, of which users ask no timeout, makes its groups with PyTorch's default. That of
    the default group itself gives way to TORCH_TPU_COLLECTIVE_TIMEOUT_S.
    """
    if timeout != default_pg_timeout:
        return timeout.total_seconds()
    return settings().collective_timeout_s if active.world is None else active.world.timeout_s
