# SPDX-License-Identifier: Apache-2.0
"""From a recorded trace to one function on JAX values.

C++ describes the trace (`csrc/describe.cpp`); the function made here lowers its nodes in
order when JAX traces it. Nothing here compiles, and nothing is shared between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu_core.errors import LoweringTableError
from torchtpu_core.lowering import checks, dtypes, layout, mxu, storage_views, unread
from torchtpu_core.lowering.interpreter import run_row
from torchtpu_core.lowering.promotion import SCALAR_WORDS, cast
from torchtpu_core.lowering.storage_views import Geometry, Plan
from torchtpu_core.runtime import clients, cpu_errors, list_pieces, recomputation, tables
from torchtpu_core.runtime.trace_words import Words

_OWN_OUTPUT = list_pieces.OWN_OUTPUT
_UNWRITTEN = -1

#: What `csrc/describe.cpp` makes of a trace.
Description = Mapping[str, Any]
#: (error, message, node of the trace) of a run-time check.
Check = tuple[type[Exception], str, int]


@dataclass(frozen=True, slots=True)
class TraceFunction:
    """A trace as a function that JAX can trace.

    Attributes:
        function: operands, then the scalar words if any, to the results: the live outputs
            in the order of `positions`, then the flags of the checks if there are any.
        avals: shape, dtype and placement of the operands.
        donated: operands whose buffers the results take.
        name: shown in logs and profiles.
        positions: live output -> index in the result.
        output_bytes: bytes of the results that take new memory.
        checks: of each check; filled while JAX traces `function`.
    """

    function: Callable[..., tuple[jax.Array, ...]]
    avals: list[jax.ShapeDtypeStruct]
    donated: list[int]
    name: str
    positions: list[int]
    output_bytes: int
    checks: list[Check] = field(default_factory=list)


def trace_function(trace: Description) -> TraceFunction:
    """The function that a described trace stands for.

    Args:
        trace: what `csrc/describe.cpp` makes.
    """
    live: list[tuple[int, int]] = trace["live"]
    order, donated = _result_order(trace)
    collected_checks: list[Check] = []

    def function(*arguments: jax.Array) -> tuple[jax.Array, ...]:
        operands = arguments[: len(trace["operands"])]
        words = Words(arguments[-1] if trace["scalar_count"] else None)
        collected_checks.clear()
        with checks.collecting() as collected, layout.remembering():
            results = _lower_nodes(trace, operands, words, collected)
        outputs = [results[node][output] for node, output in (live[i] for i in order)]
        if collected.conditions:
            outputs.append(checks.failed(collected.conditions))
            collected_checks.extend(collected.messages)
        return tuple(outputs)

    positions = [0] * len(order)
    for position, output in enumerate(order):
        positions[output] = position
    return TraceFunction(
        function=function,
        avals=_operand_avals(trace),
        donated=donated,
        name=name_of(trace),
        positions=positions,
        output_bytes=_new_bytes(trace, live),
        checks=collected_checks,
    )


def name_of(trace: Description) -> str:
    """A short name for a trace: its first ops."""
    return "+".join(node["name"].split("::")[-1] for node in trace["nodes"][:4])


def _result_order(trace: Description) -> tuple[list[int], list[int]]:
    """Live outputs in result order, and the donated operands.

    XLA pairs donated operands with results in order, so the results that replace them
    come first.
    """
    pairs = sorted(trace["donated"])
    first = [output for _, output in pairs]
    rest = [i for i in range(len(trace["live"])) if i not in first]
    return first + rest, [operand for operand, _ in pairs]


def _operand_avals(trace: Description) -> list[jax.ShapeDtypeStruct]:
    placement = clients.sharding(trace["device"])
    avals = [
        jax.ShapeDtypeStruct(sizes, dtypes.to_numpy(dtype), sharding=placement)
        for sizes, _, dtype in trace["operands"]
    ]
    if trace["scalar_count"]:
        words = (trace["scalar_count"] * SCALAR_WORDS,)
        avals.append(jax.ShapeDtypeStruct(words, np.uint32, sharding=placement))
    return avals


def _new_bytes(trace: Description, live: Sequence[tuple[int, int]]) -> int:
    replaced = {output for _, output in trace["donated"]}
    total = 0
    for i, (node, output) in enumerate(live):
        if i not in replaced:
            geometry = Geometry(*trace["nodes"][node]["outputs"][output][0])
            total += int(np.prod(geometry.sizes, dtype=np.int64)) * geometry.dtype.itemsize
    return total


def _lower_nodes(
    trace: Description,
    operands: Sequence[jax.Array],
    words: Words,
    collected: checks.Collected,
) -> list[list[jax.Array]]:
    results: list[list[jax.Array]] = []
    sources, operands, read = Sources(), list(operands), _read_results(trace)
    for index, node in enumerate(trace["nodes"]):
        collected.node = index
        if recomputation.starts(trace["nodes"], index):
            recomputation.hold_back(trace["nodes"], index, operands, results)

        def source(place: tuple[Any, ...] | None) -> jax.Array | None:
            if place is None:
                return None
            if place[0] == "operand":
                return operands[place[1]]
            return results[place[1]][place[2]]

        raw = [source(place) for place, _, _, _ in node["inputs"]]
        values = _read_inputs(node, raw, words)
        update_starts = [words.starts(plan) for _, _, _, plan, _ in node["outputs"]]
        in_place = sources.add(index, node)
        ignored = {i for i in range(len(node["outputs"])) if (index, i) not in read}
        with unread.results(ignored):
            results.append(_lower_node(node, raw, values, update_starts, words, in_place))
    return results


def _read_results(trace: Description) -> set[tuple[int, int]]:
    """Results, as (node, output), that other nodes read or the program returns."""
    places = (place for node in trace["nodes"] for place, *_ in node["inputs"])
    read = {place[1:] for place in places if place is not None and place[0] != "operand"}
    return read.union(map(tuple, trace["live"]))


class Sources:
    """What each value of a trace was computed from, to tell which writes may be in place.

    XLA:CPU (jaxlib 0.10.2) fuses the computation of an update into the write, and does not
    see that it reads other places of the same buffer if it reads them in another shape: it
    then reads what it has just written. So a write is in place only if nothing it depends
    on, but the place itself, shares a source with the value that is written.
    """

    def __init__(self) -> None:
        self._bits: dict[Any, int] = {}

    def _of(self, place: Any) -> int:
        return self._bits.setdefault(place, 1 << len(self._bits))

    def add(self, index: int, node: dict[str, Any]) -> bool:
        """Note a node's results; whether its writes may be in place."""
        inputs = [self._of(place) for place, _, _, _ in node["inputs"] if place is not None]
        everything = 0
        for bits in inputs:
            everything |= bits
        in_place = all(self._is_apart(node, output) for output in node["outputs"] if output[1])
        for position in range(len(node["outputs"])):
            own = self._of(("node", index, position))
            self._bits["node", index, position] = own | everything
        return in_place

    def _is_apart(self, node: dict[str, Any], output: tuple[Any, ...]) -> bool:
        base, plan, first = output[2], output[3], True
        while base <= _OWN_OUTPUT:  # what the op has written itself, from results it had before
            first, base = False, node["outputs"][_OWN_OUTPUT - base][2]
        if base == _UNWRITTEN:
            return True  # no operand can be part of it
        pieces = list_pieces.written_inputs(node) if list_pieces.are_written_by(node) else set()
        if not first and not pieces:
            return False
        written = node["inputs"][base][0]
        own_reads = 0
        for position, (place, _, view, read_plan) in enumerate(node["inputs"]):
            if place is None or view is None or (position in pieces and place == written):
                continue
            if place == written and read_plan == plan and own_reads == 0:
                own_reads += 1
            elif self._of(place) & self._of(written):
                return False
        return True


def _read_inputs(node: dict[str, Any], raw: Sequence[Any], words: Words) -> list[Any]:
    values = []
    for value, (_, base, view, plan) in zip(raw, node["inputs"], strict=True):
        starts = words.starts(plan)
        if view is None:
            values.append(value)
            continue
        geometry = Geometry(*base) if base is not None else None
        values.append(storage_views.read(value, geometry, Geometry(*view), Plan(*plan), starts))
    return values


def _lower_node(
    node: dict[str, Any],
    raw: Sequence[Any],
    values: Sequence[Any],
    update_starts: Sequence[Sequence[jax.Array]],
    words: Words,
    in_place: bool,
) -> list[jax.Array]:
    scalars = words.take(node["scalars"])
    args, kwargs = arguments(node, values, words, scalars)
    specs = _result_specs(node)

    def write(position: int, value: jax.Array, earlier: list[jax.Array]) -> jax.Array:
        output, starts = node["outputs"][position], update_starts[position]
        return _write_output(value, raw, earlier, output, starts, node, in_place)

    def lower_piece(position: int, own: list[Any], named: dict[str, Any]) -> jax.Array:
        (value,) = _split_returns(node, _run(node, own, named))[1]
        return _conform(node["name"], value, *_shape_of(specs[position]))

    if list_pieces.are_written_by(node):
        return list_pieces.lower(node, args, kwargs, update_starts, lower_piece, write)
    fresh, written = _split_returns(node, _run(node, args, kwargs))
    results: list[jax.Array] = []
    for position, (value, spec) in enumerate(zip(fresh + written, specs, strict=True)):
        value = _conform(node["name"], value, *_shape_of(spec))
        results.append(write(position, value, results))
    return results


def _run(node: dict[str, Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        with mxu.using(node.get("precision")):
            return run_row(node["row"], args, kwargs, tables.current())
    except Exception as error:
        cpu_errors.raise_for_arrays(node["name"], args, kwargs, error)
        raise


def _shape_of(spec: Any) -> tuple[tuple[int, ...], np.dtype]:
    sizes, _, dtype = spec
    return sizes, dtypes.to_numpy(dtype)


def arguments(
    node: Mapping[str, Any], values: Sequence[Any], words: Words, scalars: range
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a node's row.

    Args:
        node: of a description.
        values: of its tensor operands.
        words: the scalars of the trace.
        scalars: which of them are the node's.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, keyword, kind, payload in node["args"]:
        if kind == "tensor":
            value = values[payload]
        elif kind == "tensors":
            value = [None if i < 0 else values[i] for i in payload]
        elif kind == "scalar":
            position, scalar_kind, dtype = payload
            value = words.scalar(scalars[position], scalar_kind, dtype)
        elif kind == "scalars":
            made = {i: words.scalar(scalars[i], k) for i, k in zip(*payload, strict=True)}
            value = [made[i] for i in payload[0]]
        else:
            value = payload
        if keyword:
            kwargs[name] = value
        else:
            args.append(value)
    if node["random"]:
        kwargs["rng"] = words.rng(scalars)
    if node["only_out"]:
        sizes, _, dtype = node["written"][0]
        kwargs["out"] = jax.ShapeDtypeStruct(sizes, dtypes.to_numpy(dtype))
    return args, kwargs


def _result_specs(node: dict[str, Any]) -> list[Any]:
    specs = [spec for _, specs in node["outs"] for spec in specs]
    return specs + list(node["written"])


def _split_returns(node: dict[str, Any], returned: Any) -> tuple[list[Any], list[Any]]:
    """Fresh results and new values of written arguments, both flat."""
    items = list(returned) if isinstance(returned, tuple) else [returned]
    states_all = len(items) == len(node["outs"]) + len(node["written"])
    fresh: list[Any] = []
    for kind, specs in node["outs"]:
        if kind == "tensor":
            fresh.append(items.pop(0))
        elif kind == "list":
            fresh.extend(_flat_list(items, len(specs)))
        elif items and (states_all or not isinstance(items[0], jax.Array)):
            items.pop(0)  # nobody asked for it
    written: list[Any] = []
    for item in items:
        written.extend(item if isinstance(item, list) else [item])
    return fresh, [value for value in written if value is not None]


def _flat_list(items: list[Any], count: int) -> list[Any]:
    if items and isinstance(items[0], (list, tuple)):
        return list(items.pop(0))
    taken = items[:count]
    del items[:count]
    return taken


def _conform(name: str, value: Any, sizes: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    value = cast(value, dtype)
    if value.shape == tuple(sizes):
        return value
    if value.ndim == 0 or value.size == 1:
        return jnp.broadcast_to(value.reshape(()), sizes)
    raise LoweringTableError(
        f"the lowering of {name} returned shape {value.shape}, but PyTorch says {tuple(sizes)}. "
        "This is a mistake in the lowering table; please report it with the line that calls it."
    )


def _write_output(
    value: jax.Array,
    raw: Sequence[Any],
    earlier: Sequence[jax.Array],
    output: tuple[Any, ...],
    starts: Sequence[jax.Array],
    node: dict[str, Any],
    in_place: bool,
) -> jax.Array:
    geometry, is_update, base, plan, sizes = output
    if not is_update:
        return value
    kept = Geometry(*geometry)
    view = Geometry(tuple(sizes), _strides_of(node, output), dtypes.to_torch(value.dtype))
    old = raw[base] if base >= 0 else earlier[_OWN_OUTPUT - base] if base <= _OWN_OUTPUT else None
    return storage_views.write(old, kept, view, Plan(*plan), starts, value, in_place)


def _strides_of(node: dict[str, Any], output: tuple[Any, ...]) -> tuple[int, ...]:
    """Strides of the tensor that an update writes."""
    fresh = sum(len(specs) for _, specs in node["outs"])
    index = next(i for i, o in enumerate(node["outputs"]) if o is output)
    return tuple(node["written"][index - fresh][1])
