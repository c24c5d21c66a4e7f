# SPDX-License-Identifier: Apache-2.0
"""Random ops in graphs of the default backend: they draw what they draw in eager mode.

Inductor decomposes random ops to uniform and normal numbers, and replaces those by draws from
seeds, which it takes all at once: in an order that is not eager's. On tensors of this device two
ops of ours take the place of such a draw before Inductor's replacement sees it. The first takes the
generator's state and one step of it, where the user's op stood; the second draws from that state,
so that a checkpointed region draws its numbers again in the backward pass. Which op of the user's a
draw is a part of (``original_aten``) says which numbers that op draws in eager mode.

Of the random ops that Inductor decomposes to nothing simpler, attention for one, those of a
checkpointed region get a state of the first kind too, and run from it: AOTAutograd would wrap them
to save the state, and Inductor refuses that wrapper on a device it does not list.

Graphs of other devices stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch
from torch.fx import Node
from torch.utils.checkpoint import CheckpointPolicy
from torchtpu_core.lowering import dtypes, random
from torchtpu_core.lowering.promotion import Operand
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Lowering, native
from torchtpu_core.runtime import tables

from torchtpu_compile import rng_states

_ATEN = torch.ops.aten
_UNIFORM, _OPEN, _NORMAL = "uniform", "open", "normal"
#: What the parts of Inductor's decompositions are drawn from.
_DRAWS: Mapping[Any, str] = {
    _ATEN.rand.default: _UNIFORM,
    _ATEN.rand.generator: _UNIFORM,
    _ATEN.randn.default: _NORMAL,
    _ATEN.randn.generator: _NORMAL,
    torch.ops.prims.normal.default: _NORMAL,
}
_WHOLE = _ATEN.randint.low
#: Ops that take the logarithm or the tangent of a number strictly inside (0, 1).
_NEVER_ZERO = (_ATEN.exponential, _ATEN.geometric, _ATEN.cauchy)
#: Ops that compare a number in float32, whatever their dtype.
_SINGLE = (_ATEN.native_dropout,)
#: What a checkpointed region says of a node that its backward pass computes again.
_RECOMPUTES = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
_Replace = Callable[[Node], None]


def register(replace_random: Any) -> None:
    """Put our patterns before those of Inductor's module that replaces random ops."""
    from torch._inductor.pattern_matcher import CallFunctionVarArgs, register_graph_pattern

    def put(targets: Sequence[Any], check: Callable[[Node], bool], replace: _Replace) -> None:
        pattern = register_graph_pattern(
            CallFunctionVarArgs(list(targets)),
            extra_check=lambda match: check(match.output_node()),
            pass_dict=replace_random.patterns,
            prepend=True,
        )
        pattern(lambda match, *args, **kwargs: replace(match.output_node()))

    parts = (*_DRAWS, _WHOLE)
    put(parts, _is_ours, _replace)
    put([op for op in _random_overloads() if op not in parts], _is_again, _restore)


def _random_overloads() -> Iterator[torch._ops.OpOverload]:
    """The ops whose rows take a step of the generator."""
    for name, row in tables.current().items():
        if row.random:
            packet, _, overload = name.partition(".")
            found = functools.reduce(getattr, packet.split("::"), torch.ops)
            yield getattr(found, overload or "default")


def _is_ours(node: Node) -> bool:
    value = _first(node)
    return value is not None and value.device.type == "tpu" and node.kwargs.get("generator") is None


def _is_again(node: Node) -> bool:
    """Whether a random op of the device is one that the backward pass runs again."""
    return node.meta.get("recompute") in _RECOMPUTES and _is_ours(node)


def _first(node: Node) -> torch.Tensor | None:
    """The first tensor of what a node returns."""
    values = jax.tree.leaves(node.meta.get("val"))
    return next((v for v in values if isinstance(v, torch.Tensor)), None)


def _restore(node: Node) -> None:
    """Run an op from a state that is taken, and saved, in the forward pass."""
    graph = node.graph
    with graph.inserting_before(node):
        state = _take_state(node)
        call = graph.call_function(
            rng_states.RESTORES, (state, node.target, *node.args), dict(node.kwargs)
        )
    call.meta.update(node.meta)
    node.replace_all_uses_with(call)
    graph.erase_node(node)


def _take_state(node: Node) -> Node:
    """A node that takes the state, and one step of it, for a random op."""
    graph, ops, value = node.graph, _ops(), _first(node)
    assert value is not None
    number = len(graph.find_nodes(op="call_function", target=ops.state))
    state = graph.call_function(ops.state, (value.device, number))
    state.meta.update(node.meta)
    if "recompute" in node.meta:  # the backward pass draws again, from the same state
        state.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    state.meta["val"] = value.new_empty(rng_states.STATE_BYTES, dtype=torch.uint8)
    return state


def _replace(node: Node) -> None:
    value, graph, ops = node.meta["val"], node.graph, _ops()
    origin = getattr(node.meta.get("original_aten"), "overloadpacket", None)
    dtype = torch.float32 if origin in _SINGLE else value.dtype
    if origin in _NEVER_ZERO and not dtype.is_floating_point:
        dtype = torch.float64  # whole numbers, which the decomposition draws as zeros
    made = {"dtype": dtype, "device": value.device}
    with graph.inserting_before(node):
        state = _take_state(node)
        if node.target is _WHOLE:
            call = graph.call_function(ops.draw_whole, (state, *node.args), made)
        else:
            kind = _OPEN if origin in _NEVER_ZERO else _DRAWS[node.target]
            call = graph.call_function(ops.draw, (state, node.args[0], kind), made)
    call.meta.update(node.meta)
    call.meta["val"] = value.to(dtype)
    node.replace_all_uses_with(call)
    graph.erase_node(node)


@dataclass(frozen=True)
class _Ops:
    """The ops that draw; they run in programs only."""

    state: Any
    draw: Any
    draw_whole: Any
    #: What is registered lives as long as this.
    library: torch.library.Library


@functools.cache
def _ops() -> _Ops:
    library = torch.library.Library("torchtpu_inductor", "FRAGMENT")
    made = "*, ScalarType dtype, Device device"
    # The number tells the states of a graph apart: equal nodes would become one.
    library.define(
        "state(Device device, int number) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
    )
    library.define(f"draw(Tensor state, SymInt[] size, str kind, {made}) -> Tensor")
    library.define(
        f"draw_whole(Tensor state, SymInt low, SymInt high, SymInt[] size, {made}) -> Tensor"
    )
    namespace = torch.ops.torchtpu_inductor
    for name, fake in {"state": _fake_state, "draw": _fake_draw, "draw_whole": _fake_whole}.items():
        torch.library.register_fake(f"torchtpu_inductor::{name}", fake, lib=library)
    return _Ops(
        namespace.state.default, namespace.draw.default, namespace.draw_whole.default, library
    )


def _fake_state(device: torch.device, number: int) -> torch.Tensor:
    return torch.empty(rng_states.STATE_BYTES, dtype=torch.uint8, device=device)


def _fake_draw(
    state: torch.Tensor, size: Sequence[int], kind: str, *, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device)


def _fake_whole(
    state: torch.Tensor,
    low: int,
    high: int,
    size: Sequence[int],
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device)


def _state(number: int, *, rng: Rng) -> jax.Array:
    return rng_states.pack(rng)


def _draw(
    state: jax.Array | Rng, size: Sequence[int], kind: str, *, dtype: torch.dtype
) -> jax.Array:
    rng = _stream(state)
    if kind == _NORMAL:
        return random.randn(size, dtype=dtype, rng=rng)
    if kind == _UNIFORM:
        return random.rand(size, dtype=dtype, rng=rng)
    target = dtypes.to_numpy(dtype)
    return random.open_unit(rng, tuple(size), random.compute_dtype(target)).astype(target)


def _draw_whole(
    state: jax.Array | Rng, low: Operand, high: Operand, size: Sequence[int], *, dtype: torch.dtype
) -> jax.Array:
    return random.randint_low(low, high, size, dtype=dtype, rng=_stream(state))


def _stream(state: jax.Array | Rng) -> Rng:
    """The stream at a state; a rule for padded sizes puts its own in the state's place."""
    return state if isinstance(state, Rng) else rng_states.unpack(state)


_TABLE = (
    native("torchtpu_inductor::state", _state, random=True),
    native("torchtpu_inductor::draw", _draw),
    native("torchtpu_inductor::draw_whole", _draw_whole, runtime=("low", "high")),
)
#: The rows by overload name.
ROWS: Mapping[str, Lowering] = {row.overload: row for row in _TABLE}
