# SPDX-License-Identifier: Apache-2.0
"""Compiled collectives: one program per group, collective and operands.

Each rank compiles the same program over the mesh of the group and runs it on its own
piece. Its last result is a token that exists only to be waited for: results may be
donated to later programs, the token never is.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torchtpu_core.env_values import LogTopic
from torchtpu_core.env_vars import settings
from torchtpu_core.errors import TorchTPUError
from torchtpu_core.runtime.current import target
from torchtpu_core.simulator.pricing import price
from torchtpu_core.simulator.stablehlo import program_cost

from torchtpu_distributed.calls import BODIES, Collective
from torchtpu_distributed.group import Group

log = logging.getLogger("torchtpu")

Avals = tuple[jax.ShapeDtypeStruct, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A collective that is ready to run.

    Attributes:
        run: this rank's arrays to this rank's results, and the token.
        device_time_ps: simulated time of one run; 0 without a chip model.
    """

    run: Callable[[Sequence[jax.Array]], Sequence[jax.Array]]
    device_time_ps: int


class Programs:
    """The programs of one group."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._made: dict[tuple[Any, ...], Program] = {}

    def find(self, call: Collective, operands: Avals) -> Program:
        """The program of a collective, compiled at first use.

        Args:
            call: the collective.
            operands: local shape and dtype of each operand.
        """
        key = (call, *((o.shape, o.dtype) for o in operands))
        if key not in self._made:
            self._made[key] = _compile(self._group, call, operands)
        return self._made[key]


def _compile(group: Group, call: Collective, operands: Avals) -> Program:
    began = time.perf_counter()
    n, sharding = group.size, group.sharding

    def body(*arrays: jax.Array) -> tuple[jax.Array, ...]:
        return (*BODIES[call.kind](arrays, call, n), jnp.zeros((1,), np.uint8))

    body.__name__ = call.kind
    spec = sharding.spec
    mapped = jax.shard_map(
        body, mesh=sharding.mesh, in_specs=(spec,) * len(operands), out_specs=spec, check_vma=False
    )
    whole = [
        jax.ShapeDtypeStruct((n * o.shape[0], *o.shape[1:]), o.dtype, sharding=sharding)
        for o in operands
    ]
    with jax.enable_x64(True):
        lowered = jax.jit(mapped, keep_unused=True).lower(*whole)
    compiled = lowered.compile()
    if LogTopic.COMPILES in settings().log:
        elapsed_ms = (time.perf_counter() - began) * 1e3
        log.warning(
            "<TorchTpu/compiles> %s: compiled in %.1f ms",
            call.describe([(o.dtype, o.shape) for o in operands]),
            elapsed_ms,
        )

    def run(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        joined = [
            jax.make_array_from_single_device_arrays(w.shape, sharding, [array])
            for w, array in zip(whole, arrays, strict=True)
        ]
        return [result.addressable_data(0) for result in compiled(*joined)]

    return Program(run, _device_time_ps(lowered, group))


def _device_time_ps(lowered: Any, group: Group) -> int:
    """Price of the program, with ranks as the devices of the simulated slice.

    Rank i is taken to be device i of the slice; a job of more ranks than the slice has
    devices is priced as a line of its chips.
    """
    slice_ = target().target.slice_
    if slice_ is None:
        return 0
    try:
        cost = program_cost(lowered.as_text())
        if group.world.size > slice_.devices:
            return price(cost, slice_.chip).total_ps
        collectives = tuple(
            replace(c, groups=tuple(tuple(group.ranks[i] for i in g) for g in c.groups))
            for c in cost.collectives
        )
        return price(replace(cost, collectives=collectives), slice_).total_ps
    except TorchTPUError as error:
        log.warning("<TorchTpu/simulator> a collective could not be priced: %s", error)
        return 0
