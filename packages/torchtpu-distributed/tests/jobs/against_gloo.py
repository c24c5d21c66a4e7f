# SPDX-License-Identifier: Apache-2.0
"""Calls of torch.distributed that a job makes twice: on CPU tensors, by gloo, and on the device.

A case is a function of a device; it returns tensors, numbers, or lists of them. `mine`
makes the same operand of a rank on both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from torch import distributed as dist

Tensor = torch.Tensor


def mine(device: str, shape: tuple[int, ...] = (4, 3), seed: int = 0) -> Tensor:
    """This rank's operand number `seed`."""
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    return torch.randn(shape, generator=generator).to(device)


def reduce_to_root(device: str) -> Any:
    x = mine(device)
    dist.reduce(x, 1, dist.ReduceOp.MAX)
    return x if dist.get_rank() == 1 else None


def sparse_reduction(device: str) -> Any:
    """Rank i has i + 1 positions, some of them twice; row 0 is every rank's."""
    rank = dist.get_rank()
    places = torch.tensor([[0, *range(rank + 1)], [1, *[2] * (rank + 1)]])
    x = torch.sparse_coo_tensor(places, mine("cpu", (rank + 2, 3)), (8, 4, 3)).to(device)
    y = x.clone()
    dist.all_reduce(x)
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return x.to_dense(), x.coalesce().indices(), y.to_dense()


def gather_list_later(device: str) -> Any:
    x = mine(device)
    gathered = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    work = dist.all_gather(gathered, x, async_op=True)
    return gathered, work.wait()


def gather_in_place(device: str) -> Any:
    rank = dist.get_rank()
    whole = torch.zeros(dist.get_world_size() * 5, device=device)
    part = whole[rank * 5 : (rank + 1) * 5]
    part.copy_(mine(device, (5,)))
    dist.all_gather_into_tensor(whole, part)
    return whole


def all_to_all_uneven_later(device: str) -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    splits = [(rank + other) % 3 for other in range(size)]
    x = mine(device, (sum(splits), 2))
    received = torch.zeros_like(x)
    dist.all_to_all_single(received, x, splits, splits, async_op=True).wait()
    return received


def coalesced_gathers(device: str) -> Any:
    tensors = [mine(device, (i + 1, 2), i) for i in range(3)]
    gathered = [t.new_empty((dist.get_world_size() * t.shape[0], 2)) for t in tensors]
    if device == "cpu":  # gloo's own coalescing does not wait
        for whole, part in zip(gathered, tensors, strict=True):
            dist.all_gather_into_tensor(whole, part)
        return gathered
    with dist._coalescing_manager(device=torch.device(device)):
        for whole, part in zip(gathered, tensors, strict=True):
            dist.all_gather_into_tensor(whole, part)
    return gathered


def future_of_a_reduction(device: str) -> Any:
    work = dist.all_reduce(mine(device), async_op=True)
    return work.get_future().then(lambda done: done.value()[0] * 2).wait()


def many_reductions_waited_for_backwards(device: str) -> Any:
    tensors = [mine(device, seed=i) for i in range(6)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for work in reversed(works):
        work.wait()
    return tensors


def batched_messages(device: str) -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.empty(4, 3, device=device)
    send = dist.P2POp(dist.isend, mine(device), (rank + 1) % size)
    receive = dist.P2POp(dist.irecv, received, (rank - 1) % size)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    return received


def message_from_any(device: str) -> Any:
    received: dict[int, Tensor] = {}
    if dist.get_rank() != 0:
        dist.send(mine(device), 0)
        return None
    for _ in range(dist.get_world_size() - 1):
        x = torch.empty(4, 3, device=device)
        received[dist.recv(x)] = x
    return [received[rank] for rank in sorted(received)]


def message_into_a_row(device: str) -> Any:
    received = torch.zeros(4, 6, device=device)
    if dist.get_rank() == 0:
        dist.send(mine(device, (4, 6))[1], 1)
    if dist.get_rank() == 1:
        dist.recv(received[2], 0)
    return received


def object_lists(device: str) -> Any:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [None] * size if rank == 0 else None
    dist.gather_object(("object", rank), gathered, 0)
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, list(range(size)) if rank == 0 else None, 0)
    sent: list[Any] = [{"rank": rank}, rank]
    dist.broadcast_object_list(sent, 1, device=torch.device(device))
    return gathered, scattered, sent


def group_others_do_not_know(device: str) -> Any:
    """Ranks 0 and the last make a group of their own; the others never hear of it."""
    last = dist.get_world_size() - 1
    if dist.get_rank() not in (0, last):
        return None
    group = dist.new_group([0, last], use_local_synchronization=True)
    x, y = mine(device), mine(device, seed=1)
    dist.all_reduce(x, group=group)
    dist.broadcast(y, group_src=1, group=group)
    gathered = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(gathered, x, group=group)
    return x, y, gathered


def group_in_another_order(device: str) -> Any:
    group = dist.new_group([dist.get_world_size() - 1, 0])
    if group == dist.GroupMember.NON_GROUP_MEMBER:
        return None
    x = mine(device)
    gathered = x.new_empty((8, 3))
    dist.all_gather_into_tensor(gathered, x, group=group)
    return gathered, dist.get_rank(group)


def group_of_one(device: str) -> Any:
    group = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    x = mine(device)
    gathered, scattered, swapped = [torch.empty_like(x)], torch.empty_like(x), torch.empty_like(x)
    dist.all_reduce(x, group=group)
    dist.all_gather(gathered, x, group=group)
    dist.reduce_scatter(scattered, [x], group=group)
    dist.all_to_all_single(swapped, x, group=group)
    return x, gathered, scattered, swapped


def group_of_one_on_each_rank(device: str) -> Any:
    """All ranks call `new_group`, each with itself, and use a group of all of them thereafter."""
    alone = dist.new_group([dist.get_rank()])
    together = dist.new_group()
    x, y = mine(device), mine(device, seed=1)
    dist.all_reduce(x, group=alone)
    dist.barrier(group=alone)
    said = [None]
    dist.all_gather_object(said, dist.get_rank(), group=alone)
    dist.all_reduce(y, group=together)
    return x, said, y


def functional_collectives(device: str) -> Any:
    x, world = mine(device, (8, 3)), dist.group.WORLD
    return [
        functional.all_reduce(x, "avg", world) + 0,
        functional.all_gather_tensor(x, 1, world) + 0,
        functional.reduce_scatter_tensor(x, "sum", 0, world) + 0,
        functional.all_to_all_single(x, None, None, world) + 0,
        functional.broadcast(x, 1, world) + 0,
        *(t + 0 for t in functional.all_reduce_coalesced([x, x + 1], "max", world)),
        *(t + 0 for t in functional.all_gather_into_tensor_coalesced([x, x + 1], world)),
        *(t + 0 for t in functional.reduce_scatter_tensor_coalesced([x], "sum", [0], world)),
    ]


def gradients_through_collectives(device: str) -> Any:
    import torch.distributed.nn.functional as differentiable

    x, world = mine(device, (8, 3)).requires_grad_(), dist.group.WORLD
    loss = functional.all_gather_tensor_autograd(x, 0, world).pow(2).sum()
    loss = loss + functional.reduce_scatter_tensor_autograd(x, "sum", 0, world).pow(2).sum()
    loss = loss + functional.all_to_all_single_autograd(x, None, None, world).pow(3).sum()
    loss = loss + differentiable.all_reduce(x).pow(2).sum()
    loss.backward()
    return loss.detach(), x.grad


def compiled_graph(device: str) -> Any:
    world = dist.group.WORLD

    def run(x: Tensor) -> Tensor:
        reduced = functional.all_reduce(x * 2 + 1, "sum", world)
        gathered = functional.all_gather_tensor(reduced.relu(), 0, world)
        return functional.reduce_scatter_tensor(gathered, "sum", 0, world).sum(0)

    compiled = torch.compile(run, fullgraph=True, backend="eager" if device == "cpu" else "tpu")
    return compiled(mine(device))


def meshes_of_one_to_four_axes(device: str) -> Any:
    size = dist.get_world_size()
    found: list[Any] = []
    for shape in [(size,), (2, size // 2), (1, 2, size // 2), (2, 1, 1, size // 2)]:
        names = tuple("abcd"[: len(shape)])
        mesh = dist.init_device_mesh(torch.device(device).type, shape, mesh_dim_names=names)
        for name in names:
            x = mine(device)
            dist.all_reduce(x, group=mesh.get_group(name))
            found.append(x)
        found.append(mesh.get_coordinate())
        if len(shape) > 1:
            x = mine(device)
            dist.all_reduce(x, group=mesh[names[:2]]._flatten().get_group())
            found.append(x)
    return found


CASES: dict[str, Callable[[str], Any]] = {
    case.__name__: case
    for case in (
        reduce_to_root,
        sparse_reduction,
        gather_list_later,
        gather_in_place,
        all_to_all_uneven_later,
        coalesced_gathers,
        future_of_a_reduction,
        many_reductions_waited_for_backwards,
        batched_messages,
        message_from_any,
        message_into_a_row,
        object_lists,
        group_others_do_not_know,
        group_in_another_order,
        group_of_one,
        group_of_one_on_each_rank,
        functional_collectives,
        gradients_through_collectives,
        compiled_graph,
        meshes_of_one_to_four_axes,
    )
}


def both(name: str) -> tuple[Any, Any]:
    """What a case returns by gloo and on the device, all on the CPU."""
    case = CASES[name]
    expected = case("cpu")
    dist.barrier()  # a message to any rank must not overtake those of the case before
    found = case(f"tpu:{torch.tpu.current_device()}")
    return flat(expected), flat(found)


def flat(value: Any) -> list[Any]:
    """The leaves of nested lists, tensors on the CPU."""
    if isinstance(value, torch.Tensor):
        return [value.detach().cpu()]
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in flat(part)]
    return [value]


def uneven_lists() -> tuple[list[Tensor], Tensor]:
    """all_gather and reduce_scatter whose rank i has i + 1 rows; gloo has neither."""
    rank, size = dist.get_rank(), dist.get_world_size()
    device = f"tpu:{torch.tpu.current_device()}"
    x = torch.full((rank + 1, 2), float(rank), device=device)
    gathered = [torch.zeros(other + 1, 2, device=device) for other in range(size)]
    dist.all_gather(gathered, x)
    reduced = torch.zeros(rank + 1, 2, device=device)
    dist.reduce_scatter(reduced, gathered)
    return [t.cpu() for t in gathered], reduced.cpu()
