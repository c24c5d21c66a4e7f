# SPDX-License-Identifier: Apache-2.0
"""The collectives of a step as JAX writes them, for one program of all ranks.

A rank's group stands for all groups of its kind: the others are its shifts by the ranks
that are not yet in one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.errors import PlanError
from torchtpu_core.plan.calls import Call, Place
from torchtpu_core.plan.collectives import KINDS, MESSAGES, NAMESPACES, all_groups
from torchtpu_core.plan.values import Values
from torchtpu_core.simulator.rates import LANES, SUBLANES

AXIS = "ranks"


def run(call: Call, values: Values, world: int) -> list[tuple[Place, jax.Array]]:
    """The places that a collective writes, with their new values."""
    name = call.func._schema.name.partition("::")[2]
    if is_message(call):
        return []  # what comes is an operand of the step, what goes a result
    kind = KINDS[name]
    if kind == "all_to_all" and _is_uneven(call):
        raise PlanError(
            f"the uneven all-to-all at {call.line} has no form in a program of all ranks. Plan "
            "without --compiler xla-tpu, which prices it from its split sizes."
        )
    groups = all_groups(call.group, world)
    sources, targets = ends(call)
    if len(call.group) < 2:
        return [(t, _fit(values.read(s), t)) for s, t in zip(sources, targets, strict=False)]
    how = _HOW.get(kind)
    if how is None:
        raise PlanError(
            f"the collective {name} at {call.line} has no form in a program of all ranks. Plan "
            "without --compiler xla-tpu."
        )
    done = [how(values.read(source), groups, target) for source, target in _pairs(sources, targets)]
    if len(done) == 1 and len(targets) > 1:
        parts = jnp.split(done[0].reshape(-1), len(targets))
        return [(t, _fit(part, t)) for t, part in zip(targets, parts, strict=True)]
    return [(t, _fit(d, t)) for t, d in zip(targets, done, strict=True)]


def _pairs(sources: list[Place], targets: list[Place]) -> list[tuple[Place, Place]]:
    if len(sources) == len(targets):
        return list(zip(sources, targets, strict=True))
    return [(source, targets[0]) for source in sources[:1]]


def is_collective(call: Call) -> bool:
    """Whether an operator is a collective that a plan knows."""
    name = call.func._schema.name.partition("::")[2]
    return call.func.namespace in NAMESPACES and name in KINDS


def is_message(call: Call) -> bool:
    """Whether an operator sends to, or receives from, one other rank."""
    return is_collective(call) and call.func._schema.name.partition("::")[2] in MESSAGES


def _is_uneven(call: Call) -> bool:
    """Whether an all-to-all has parts of different sizes."""
    sources, targets = ends(call)
    if len(sources) > 1:
        return len({place.sizes for place in (*sources, *targets)}) > 1
    sizes = [a for a in call.args if isinstance(a, (list, tuple)) and all(map(_is_count, a))]
    return any(len(set(one)) > 1 for one in sizes)


def _is_count(value: Any) -> bool:
    return isinstance(value, int)


def ends(call: Call) -> tuple[list[Place], list[Place]]:
    """What a collective reads, and what it writes; its schema does not say."""
    name = call.func._schema.name.partition("::")[2]
    tensors = [_places(a) for a in (*call.args, *call.kwargs.values())]
    given = [t for t in tensors if t]
    if is_message(call):
        return (given[0], []) if name == "send" else ([], given[0])
    if call.func.namespace != "c10d":
        explicit = _places(call.kwargs.get("out"))
        made = explicit or (given[0] if name.endswith("_") else _places(call.out))
        return given[0], made
    if name in ("allreduce_", "allreduce_coalesced_", "broadcast_"):
        return given[0], given[0]
    return given[1], given[0]


def _places(tree: Any) -> list[Place]:
    if isinstance(tree, Place):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [place for item in tree for place in _places(item)]
    return []


def _fit(value: jax.Array, place: Place) -> jax.Array:
    return lax.reshape(value, place.sizes)


def in_parts(x: jax.Array, ranks: int) -> jax.Array:
    """A tensor of whose first dimension each rank has whole tiles: itself, if it is one."""
    first, *rest = x.shape or (1,)
    tiled = len(rest) > 1 or (len(rest) == 1 and first // ranks % SUBLANES == 0)
    return x if tiled and first % ranks == 0 else rows_of(x, ranks)


def rows_of(x: jax.Array, ranks: int) -> jax.Array:
    """Each rank's part of a tensor by itself: ``[ranks, rows, LANES]``, or ``[ranks, part]``.

    Of a flat tensor, whose parts begin within tiles, libtpu makes an all-reduce instead of a
    reduce-scatter; rows of all lanes are moved as they are.
    """
    part = x.size // ranks
    return x.reshape(ranks, part // LANES, LANES) if part % LANES == 0 else x.reshape(ranks, part)


def _all_gather(x: jax.Array, groups: list[list[int]], _: Place) -> jax.Array:
    given = in_parts(x, 1)
    return lax.all_gather(given, AXIS, axis_index_groups=groups, tiled=True)


def _reduce_scatter(x: jax.Array, groups: list[list[int]], target: Place) -> jax.Array:
    given = in_parts(x, len(groups[0]))
    done = lax.psum_scatter(given, AXIS, axis_index_groups=groups, tiled=True)
    # libtpu makes an all-reduce of it for readers of parts, or if it sums several at once.
    return lax.optimization_barrier(done)


def _all_reduce(x: jax.Array, groups: list[list[int]], _: Place) -> jax.Array:
    done: jax.Array = lax.psum(x, AXIS, axis_index_groups=groups)
    return done


def _all_to_all(x: jax.Array, groups: list[list[int]], _: Place) -> jax.Array:
    count = len(groups[0])
    x = x if x.shape and x.shape[0] % count == 0 else x.reshape(-1)
    return lax.all_to_all(x, AXIS, 0, 0, axis_index_groups=groups, tiled=True)


_HOW: dict[str, Callable[[jax.Array, list[list[int]], Place], jax.Array]] = {
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_reduce": _all_reduce,
    "all_to_all": _all_to_all,
}
