# SPDX-License-Identifier: Apache-2.0
"""An FSDP2 training step of the GPT model beside one written by hand in JAX with `shard_map`.

    torchtpu run --chips 2 benchmarks/fsdp_step.py [--rounds 9] [--no-save]

Both run in the same processes and take turns. The JAX step shards what FSDP2 shards: each block,
and the rest, is one flat vector, gathered before its use in the forward pass and again in the
backward pass, with gradients scattered as they come. Its collectives are XLA's over gloo, the
only ones JAX has between processes of CPUs. Each candidate's losses must be those of the JAX
step. Times are of the simulated device's real execution on this machine's CPU, not simulated;
processor time of the ranks is given beside wall time, since the machine is shared.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import _jax_models as jax_models
import jax
import numpy as np
import torch
from _measure import Spread, save
from _models import GPT
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

LAYERS, HEADS, ROWS = 4, 8, 4
Step = Callable[[], float]
AXIS = "ranks"


def model_and_batch() -> tuple[GPT, torch.Tensor]:
    """The same model on all ranks, and this rank's tokens `[ROWS, 129]`."""
    torch.manual_seed(0)
    model = GPT(layers=LAYERS, width=256, heads=HEADS, vocabulary=512, length=128)
    generator = torch.Generator().manual_seed(dist.get_rank())
    return model, torch.randint(0, 512, (ROWS, 129), generator=generator)


def fsdp_step(*, compiled: bool) -> Step:
    """A step of FSDP2 with AdamW that reads its loss, eager or with compiled blocks."""
    model, tokens = model_and_batch()
    model.to("tpu")
    mesh = init_device_mesh("tpu", (dist.get_world_size(),))
    for block in model.blocks:
        if compiled:
            block.compile(backend="tpu")
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = tokens[:, :-1].contiguous().to("tpu"), tokens[:, 1:].contiguous().to("tpu")

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def unit_of(name: str) -> str:
    """The part that is gathered as one: a block, or the rest."""
    return ".".join(name.split(".")[:2]) if name.startswith("blocks.") else "rest"


class Gathered(Mapping[str, jax.Array]):
    """Parameters by name from shards `[n / ranks]` of flat units, gathered when first asked for.

    Args:
        shards: of each unit.
        shapes: of each parameter, in the order of its unit.
    """

    def __init__(self, shards: dict[str, jax.Array], shapes: dict[str, tuple[int, ...]]) -> None:
        self._shards, self._shapes = shards, shapes
        self._whole: dict[str, jax.Array] = {}

    def __getitem__(self, name: str) -> jax.Array:
        if name not in self._whole:
            unit = unit_of(name)
            flat = checkpoint_name(lax.all_gather(self._shards[unit], AXIS, tiled=True), "whole")
            start = 0
            for other, shape in self._shapes.items():
                if unit_of(other) == unit:
                    count = int(np.prod(shape))
                    self._whole[other] = flat[start : start + count].reshape(shape)
                    start += count
        return self._whole[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)


def flat_units(model: GPT, ranks: int) -> dict[str, np.ndarray[Any, Any]]:
    """The parameters of each unit in one vector, padded to a multiple of the ranks."""
    parts: dict[str, list[np.ndarray[Any, Any]]] = {}
    for name, value in model.named_parameters():
        parts.setdefault(unit_of(name), []).append(value.detach().numpy().ravel())
    joined = {unit: np.concatenate(vectors) for unit, vectors in parts.items()}
    return {unit: np.pad(v, (0, -v.size % ranks)) for unit, v in joined.items()}


def jax_step(address: str) -> Step:
    """The same by hand."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, ranks, rank)
    model, tokens = model_and_batch()
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    mesh = Mesh(np.array(jax.devices("cpu")), (AXIS,))
    split = NamedSharding(mesh, PartitionSpec(AXIS))

    def put(local: np.ndarray[Any, Any]) -> jax.Array:
        return jax.make_array_from_process_local_data(split, local)

    flat = flat_units(model, ranks)
    params = {u: put(np.split(v, ranks)[rank]) for u, v in flat.items()}
    zeros = {u: put(np.zeros_like(np.split(v, ranks)[rank])) for u, v in flat.items()}
    again = {u: put(np.zeros_like(np.split(v, ranks)[rank])) for u, v in flat.items()}
    batch = [put(t.numpy().astype(np.int32)) for t in (tokens[:, :-1], tokens[:, 1:])]
    gathers_again = jax.checkpoint_policies.save_anything_except_these_names("whole")

    @partial(jax.checkpoint, policy=gathers_again)
    def loss_of(shards: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        whole = Gathered(shards, shapes)
        return jax_models.gpt_loss(whole, x, y, layers=LAYERS, heads=HEADS) / ranks

    def train(params: Any, first: Any, second: Any, count: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        new = jax_models.adamw(params, grads, first, second, count + 1)
        return (*new, count + 1), lax.psum(loss, AXIS)[None]

    one, none = PartitionSpec(AXIS), PartitionSpec()
    sharded = jax.shard_map(
        train,
        mesh=mesh,
        in_specs=(one, one, one, none, one, one),
        out_specs=((one, one, one, none), one),
        check_vma=False,
    )
    call = jax.jit(sharded, donate_argnums=(0, 1, 2, 3))
    count = jax.make_array_from_process_local_data(NamedSharding(mesh, none), np.float32(0))
    held = [(params, zeros, again, count)]

    def step() -> float:
        held[0], loss = call(*held[0], *batch)
        return float(loss.addressable_shards[0].data[0])

    return step


def mean_over_ranks(value: float) -> float:
    """A number of each rank, averaged; also where the ranks meet before a turn."""
    mean = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def measure(steps: Mapping[str, Step], rounds: int, calls: int) -> dict[str, Any]:
    """Milliseconds of a step, wall and processor, by candidate; and their ratios to JAX's.

    Raises:
        RuntimeError: a candidate's losses are not those of the JAX step.
    """
    wall: dict[str, list[float]] = {name: [] for name in steps}
    busy: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 3):
        for name, step in steps.items():
            mean_over_ranks(0.0)
            began, began_busy = time.perf_counter(), time.process_time()
            found = [step() for _ in range(calls)]
            took = mean_over_ranks(time.perf_counter() - began) / calls * 1e3
            took_busy = mean_over_ranks(time.process_time() - began_busy) / calls * 1e3
            mean = mean_over_ranks(found[-1])
            losses[name].append(found[-1] if name == "jax" else mean)
            if turn >= 3:  # the first ones compile
                wall[name].append(took)
                busy[name].append(took_busy)
    for name, values in losses.items():
        if not np.allclose(values, losses["jax"], rtol=2e-3):
            raise RuntimeError(f"{name} has other losses than JAX: {values}, {losses['jax']}")
    return {
        name: {
            "wall_ms": Spread.of(wall[name]),
            "processor_ms": Spread.of(busy[name]),
            "wall_over_jax": _ratio(wall[name], wall["jax"]),
            "processor_over_jax": _ratio(busy[name], busy["jax"]),
            "least_wall_over_jax": min(wall[name]) / min(wall["jax"]),
        }
        for name in steps
    }


def _ratio(ours: list[float], theirs: list[float]) -> Spread:
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


def _address() -> str:
    """A free port of the first rank, known to all."""
    found = [""]
    if dist.get_rank() == 0:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            found = [f"127.0.0.1:{probe.getsockname()[1]}"]
    dist.broadcast_object_list(found, 0, device=torch.device("cpu"))
    return found[0]


def main() -> None:
    """Measure on all ranks; rank 0 prints and saves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--no-save", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("cpu:gloo,tpu:tpu_dist")
    torch.tpu.set_device(int(os.environ["LOCAL_RANK"]))
    steps = {"jax": jax_step(_address())}
    steps |= {"fused": fsdp_step(compiled=False), "compiled_blocks": fsdp_step(compiled=True)}
    figures = measure(steps, args.rounds, args.calls)
    if dist.get_rank() == 0:
        for name, row in figures.items():
            print(name, {key: str(value) for key, value in row.items()}, flush=True)
        if not args.no_save:
            path = save(f"fsdp_step_{dist.get_world_size()}_ranks", figures)
            print(f"saved to {path.name}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
