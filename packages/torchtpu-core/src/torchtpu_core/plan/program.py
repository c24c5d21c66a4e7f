# SPDX-License-Identifier: Apache-2.0
"""A recorded step as one program of all ranks, lowered for XLA's TPU compiler.

The operators of the step go through the lowering tables as in eager mode; storages that
the step reads before it writes them are operands, those that it writes and that outlive it
are results, in place where they are both, as parameters and optimizer state are.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._pytree import tree_map

from torchtpu_core.errors import PlanError
from torchtpu_core.lowering import checks, dtypes, layout, unread
from torchtpu_core.lowering.interpreter import overload_name, run_overload, run_row
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import decomposition
from torchtpu_core.plan import network_calls
from torchtpu_core.plan.calls import Call, Place
from torchtpu_core.plan.order import (
    begins_again,
    mutated,
    places,
    read_by,
    recomputation_reads,
    recomputes,
    sums_first,
)
from torchtpu_core.plan.records import Recording
from torchtpu_core.plan.values import Values, is_row_major, is_whole, structure, whole_of
from torchtpu_core.runtime import tables, transfers, variants
from torchtpu_core.simulator.rates import LANES
from torchtpu_core.targets import Target
from torchtpu_core.xla_tpu import lowering

_MADE_EMPTY = frozenset(
    ["empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"]
)
_MATRIX = 2


@dataclass(frozen=True, slots=True)
class StepProgram:
    """A step's program.

    Attributes:
        bytecode: MLIR, for the platform ``tpu``.
        operands: storages of the operands, in order.
        results: storages of the results, in order.
    """

    bytecode: bytes
    operands: list[Place]
    results: list[Place]


def program_of(recording: Recording, target: Target) -> StepProgram:
    """The last step of a recording as one program.

    Raises:
        PlanError: an operator of the step has no lowering.
    """
    start, end = recording.step()
    calls = [call for call in recording.calls if start <= call.index < end]
    operands = list(_operands(calls, recording, start).values())
    results = _results(calls, recording, end, operands)
    kept = {place.storage for place in results}
    step = _Step(calls, operands, results, recording.world_size)
    lowered = lowering.bytecode(
        step.function(),
        step.structs(),
        target,
        keep_unused=True,
        donate_argnums=tuple(i for i, place in enumerate(operands) if place.storage in kept),
    )
    return StepProgram(lowered, operands, results)


def _operands(calls: Sequence[Call], recording: Recording, start: int) -> dict[int, Place]:
    """The storages that hold a value before the step, or get one from the host.

    Each in the first shape in which it is read whole, of those that lie in memory in their order
    if there are any: a layer reads its weight transposed, which its update writes as it is.
    """
    found: dict[int, Place] = {}
    for call in calls:
        for place in places((call.args, call.kwargs)):
            older = recording.blocks[place.storage].born < start
            known = found.get(place.storage)
            if older and (known is None or _is_better(place, known)):
                found[place.storage] = _in_rows(whole_of(place))
        for place in places(call.out) if _is_upload(call) else _received(call):
            found.setdefault(place.storage, whole_of(place))
    return found


def _in_rows(place: Place) -> Place:
    """A matrix as its rows lie in memory: a layer reads its weight transposed."""
    if len(place.sizes) != _MATRIX or _is_row_major(place):
        return place
    return replace(place, sizes=place.sizes[::-1], strides=place.strides[::-1])


def _is_better(place: Place, known: Place) -> bool:
    """Whether a place says more of the shape in which its storage is kept than the known one."""
    if not is_whole(place):
        return False
    return len(known.sizes) == 1 or (_is_row_major(place) and not _is_row_major(known))


def _is_row_major(place: Place) -> bool:
    return is_row_major(place.sizes, place.strides)


def _results(
    calls: Sequence[Call], recording: Recording, end: int, operands: Sequence[Place]
) -> list[Place]:
    """The storages that the step writes and that are alive after it or that the host reads.

    They are shaped as operands are.

    Those of operands come first, in their order: JAX gives the memory of a donated operand to the
    first result of its shape, which would be a parameter's gradient.
    """
    shapes = {place.storage: place for place in operands}
    written = dict.fromkeys(
        place for call in calls for place in (*mutated(call), *places(call.out))
    )
    found: dict[int, Place] = {}
    for place in written:
        died = recording.blocks[place.storage].died
        if died is None or died > end:
            found.setdefault(place.storage, shapes.get(place.storage, whole_of(place)))
    start, _ = recording.step()
    made = {place.storage for place in written}
    for index, place in recording.downloads:
        if start < index <= end and place.storage in made:
            found.setdefault(place.storage, shapes.get(place.storage, whole_of(place)))
    for call in calls:
        if network_calls.is_message(call):
            for place in network_calls.ends(call)[0]:  # sent: somebody needs it
                found.setdefault(place.storage, shapes.get(place.storage, whole_of(place)))
    first = [found[storage] for storage in shapes if storage in found]
    return first + [place for storage, place in found.items() if storage not in shapes]


def _received(call: Call) -> list[Place]:
    """The places that a message from another rank fills."""
    return network_calls.ends(call)[1] if network_calls.is_message(call) else []


def _is_upload(call: Call) -> bool:
    """Whether an operator brings a host tensor to the device, or into a tensor that is there."""
    if call.func is torch.ops.aten.copy_.default:
        return isinstance(call.args[1], torch.Tensor) and call.args[1].is_meta
    return call.func is torch.ops.aten._to_copy.default and not places((call.args, call.kwargs))


class _Step:
    """The function on arrays that a step is."""

    def __init__(
        self, calls: Sequence[Call], operands: list[Place], results: list[Place], world: int
    ) -> None:
        self._calls = calls
        self._operands = operands
        self._results = results
        self._world = world
        self._read = read_by(calls) | {place.storage for place in results}
        self._tables = tables.current() or tables.without_a_device()

    def structs(self) -> list[Any]:
        """Operands of all ranks, split along their first dimension, then the random state."""
        found = []
        for place in self._operands:
            one = structure(place)
            shape = (one.shape[0] * self._world, *one.shape[1:]) if one.shape else ()
            found.append(self._struct(shape, one.dtype, bool(one.shape)))
        return [*found, self._struct((2,), np.dtype(np.uint32), False)]

    def _struct(self, shape: tuple[int, ...], dtype: Any, split: bool) -> Any:
        if self._world == 1:
            return jax.ShapeDtypeStruct(shape, dtype)
        spec = jax.sharding.PartitionSpec(network_calls.AXIS) if split else None
        sharding = jax.sharding.NamedSharding(
            self._mesh(), spec if spec is not None else jax.sharding.PartitionSpec()
        )
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def _mesh(self) -> Any:
        return jax.sharding.AbstractMesh((self._world,), (network_calls.AXIS,))

    def function(self) -> Any:
        """The step for all ranks."""
        if self._world == 1:
            return self._run
        split = jax.sharding.PartitionSpec(network_calls.AXIS)
        none = jax.sharding.PartitionSpec()
        return jax.shard_map(
            self._run,
            mesh=self._mesh(),
            in_specs=(*(split if place.sizes else none for place in self._operands), none),
            out_specs=tuple(split if place.sizes else none for place in self._results),
            check_vma=False,
        )

    def _run(self, *arrays: jax.Array) -> tuple[jax.Array, ...]:
        *operands, state = arrays
        values, draws = Values(), itertools.count()
        for place, array in zip(self._operands, operands, strict=True):
            values.set(place, array)
        with checks.collecting(), layout.remembering():
            before = None
            for index, call in enumerate(self._calls):
                if recomputes(call) and not recomputes(before):
                    values.hold_back(*recomputation_reads(self._calls, index))
                if begins_again(before, call):
                    values.tie(sums_first(self._calls, index, self._results))
                before = call
                with jax.named_scope(_scope(call)):
                    self._call(call, values, state, draws)
        return tuple(values.read(place) for place in self._results)

    def _call(self, call: Call, values: Values, state: jax.Array, draws: Any) -> None:
        name = call.func._schema.name.partition("::")[2]
        if name in _MADE_EMPTY or torch.Tag.inplace_view in call.func.tags or _is_upload(call):
            return  # What changes only a tensor's view has its place already.
        if network_calls.is_collective(call):
            for place, value in network_calls.run(call, values, self._world):
                values.write(place, value)
            return
        try:
            results = self._lowered(call, values, state, draws)
        except PlanError:
            raise
        except Exception as error:
            raise PlanError(
                f"{overload_name(call.func)} at {call.line} cannot be made part of the program for "
                f"XLA's TPU compiler: {type(error).__name__}: {error}. Plan without --compiler "
                "xla-tpu."
            ) from error
        for place, value in results:
            values.write(place, value)

    def _lowered(
        self, call: Call, values: Values, state: jax.Array, draws: Any
    ) -> list[tuple[Place, jax.Array]]:
        """The places that an operator writes, with their new values."""

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Place):
                return values.read(leaf)
            if isinstance(leaf, torch.Tensor):
                return leaf.item() if leaf.ndim == 0 else _constant(leaf)
            return leaf

        sharded = _FSDP.get(call.func._schema.name)
        if sharded is not None:
            return sharded(call, values)
        drawn = _DRAWN.get(call.func._schema.name)
        if drawn is not None:
            target = places(call.out)[0]
            bits = self._rng(state, draws)
            return [(target, drawn(bits, target.sizes, dtypes.to_numpy(target.dtype)))]
        args, kwargs = tree_map(value, (call.args, call.kwargs))
        if call.func is torch.ops.aten.copy_.default:
            return [(call.args[0], args[1])]
        function, drop_out = _form_of(call.func, self._tables)
        if drop_out:
            outs = [a.name for a in call.func._schema.arguments if a.is_out]
            kwargs = {k: v for k, v in kwargs.items() if k not in outs}
        row = self._tables.get(overload_name(function))
        random = row is not None and row.random
        rng = self._rng(state, draws) if random else None
        targets = self._targets(call, function)
        if row is None and _decomposed(function):
            row = decomposition(overload_name(function))
            returned = run_row(row, args, _without_layout(kwargs), self._tables)
        else:
            with unread.results(_unread(targets, self._read)):
                returned = run_overload(function, args, kwargs, self._tables, rng)
        flat = [leaf for leaf in jax.tree.leaves(returned) if isinstance(leaf, jax.Array)]
        return list(zip(targets, flat, strict=False))

    def _rng(self, state: jax.Array, draws: Any) -> Rng:
        """The random bits of the next operator that draws."""
        number = np.uint64(4 * next(draws))
        seed, offset = (state[i].astype(np.uint64) for i in (0, 1))
        return Rng(seed, offset + number)

    def _targets(self, call: Call, function: Any) -> list[Place]:
        """Where the values go that a row returns."""
        changed = mutated(call)
        if function is not call.func:
            return changed
        fresh = places(call.out)
        known = {(p.storage, p.offset, p.sizes) for p in changed}
        return [p for p in fresh if (p.storage, p.offset, p.sizes) not in known] + changed


def _unread(targets: Sequence[Place], read: Container[int]) -> set[int]:
    return {number for number, place in enumerate(targets) if place.storage not in read}


def _uniform(rng: Rng, sizes: tuple[int, ...], dtype: Any) -> jax.Array:
    return rng.uniform(sizes, np.dtype(np.float32)).astype(dtype)


def _normal(rng: Rng, sizes: tuple[int, ...], dtype: Any) -> jax.Array:
    return rng.normal(sizes, np.dtype(np.float32)).astype(dtype)


def _integers(rng: Rng, sizes: tuple[int, ...], dtype: Any) -> jax.Array:
    return (rng.bits(sizes) >> np.uint32(1)).astype(dtype)


def _copy_in(call: Call, values: Values) -> list[tuple[Place, jax.Array]]:
    """FSDP's shards, one after another, in this rank's part of the gathered buffer."""
    parts = [values.read(place).reshape(-1) for place in places(call.args[0])]
    target = places(call.out)[0]
    return [(target, jnp.concatenate(parts).reshape(target.sizes))]


def _split_copy(call: Call, values: Values) -> list[tuple[Place, jax.Array]]:
    """The gathered buffer split into weights."""
    source, sizes, dim = call.args[:3]
    ends = np.cumsum(sizes)[:-1].tolist()
    targets = places(call.kwargs.get("out") or call.out or call.args[3:])
    gathered = values.read(source)
    if dim == 1 and all(size % LANES == 0 for size in sizes):
        # As the collective has it; else its rows share tiles.
        gathered = network_calls.rows_of(gathered, gathered.shape[0])
        ends = [end // LANES for end in ends]
    parts = jnp.split(gathered, ends, axis=dim)
    return [(t, part.reshape(t.sizes)) for t, part in zip(targets, parts, strict=True)]


def _chunk_cat(call: Call, values: Values) -> list[tuple[Place, jax.Array]]:
    """Gradients in the order in which reduce-scatter hands them out."""
    sources, dim, chunks = call.args[:3]
    target = places(call.kwargs.get("out") or call.out)[0]
    tensors = [values.read(place) for place in sources]
    if dim == 0 and all(t.size % (chunks * LANES) == t.shape[0] % chunks == 0 for t in tensors):
        parts = [network_calls.rows_of(t, chunks) for t in tensors]
        return [(target, jnp.concatenate(parts, axis=1).reshape(target.sizes))]
    row = tables.without_a_device()["aten::_chunk_cat"]
    assert row.function is not None
    done = row.function(tensors, dim, chunks)
    return [(target, done.reshape(target.sizes))]


#: Operators of FSDP2, which are its own.
_FSDP = {
    "fsdp::all_gather_copy_in": _copy_in,
    "fsdp::split_with_sizes_copy": _split_copy,
    "fsdp::chunk_cat": _chunk_cat,
}

#: Factories that PyTorch composes on the device; their values do not matter to a plan.
_DRAWN = {
    "aten::rand": _uniform,
    "aten::rand_like": _uniform,
    "aten::randn": _normal,
    "aten::randn_like": _normal,
    "aten::randint": _integers,
    "aten::randint_like": _integers,
}


def _constant(tensor: torch.Tensor) -> jax.Array:
    """A tensor made from values that an operator reads, as part of the program."""
    host = tensor.detach().cpu().contiguous()
    return jnp.asarray(transfers.host_view(host).copy())


def _without_layout(kwargs: Any) -> dict[str, Any]:
    """Keyword arguments without those that say only where and how a result lies."""
    return {k: v for k, v in kwargs.items() if k not in ("device", "layout", "pin_memory")}


def _scope(call: Call) -> str:
    line = call.line.rpartition("/")[2]
    return f"{call.phase.value}/{line}" if ":" in line else call.phase.value


def _form_of(func: Any, known: Any) -> tuple[Any, bool]:
    """The overload whose row serves `func`, and whether `func` is its out= form."""
    name = overload_name(func)
    if name in known:
        return func, False
    schema = func._schema
    base = schema.name.partition("::")[2]
    is_out = variants.is_only_out(schema)
    candidate = base if is_out else base.removesuffix("_")
    packet = getattr(getattr(torch.ops, func.namespace), candidate, None)
    wanted = variants.inputs_of(schema)
    for overload in packet.overloads() if packet is not None else ():
        other = getattr(packet, overload)
        if other is not func and variants.inputs_of(other._schema) == wanted:
            if variants.is_only_out(other._schema):
                continue
            if overload_name(other) in known or _decomposed(other):
                return other, is_out
    return func, False


def _decomposed(func: Any) -> bool:
    from torch._decomp import decomposition_table

    return func in decomposition_table
