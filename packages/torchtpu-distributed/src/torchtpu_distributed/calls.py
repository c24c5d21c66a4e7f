# SPDX-License-Identifier: Apache-2.0
"""Collectives as functions on the arrays of one rank, traced inside `jax.shard_map`.

Legend: n ranks of the group; a local array is `(d0, ...)`, never a scalar. Data is moved,
not computed, in everything but the reductions: bits arrive as they left, NaN payloads
and signed zeros included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce as fold

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_distributed.group import AXIS
from torchtpu_distributed.pending import Operand
from torchtpu_distributed.stacks import module_of_fsdp

Arrays = Sequence[jax.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What ranks must agree on.

    Attributes:
        kind: a key of `BODIES`.
        op: reduction, a key of `REDUCTIONS`; empty where nothing is reduced.
        root: group rank that sends or receives alone, else -1.
        shapes: shape of each result.
    """

    kind: str
    op: str = ""
    root: int = -1
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls, kind: str, results: Sequence[torch.Tensor], *, op: str = "", root: int = -1
    ) -> Collective:
        """A collective with these results."""
        shapes = tuple(tuple(t.shape) or (1,) for t in results)
        return cls(kind=kind, op=op, root=root, shapes=shapes)

    def describe(self, operands: Sequence[Operand]) -> str:
        """Everything ranks must agree on, in one line."""
        words = [self.kind]
        words += [f"op={self.op}"] if self.op else []
        words += [f"root={self.root}"] if self.root >= 0 else []
        of = ", ".join(
            f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape or (1,)))}]"
            for dtype, shape in operands
        )
        return f"{' '.join(words)} of {of}{module_of_fsdp()}"


def all_reduce(arrays: Arrays, call: Collective, n: int) -> Arrays:
    """Each `(d0, ...)` reduced over the ranks."""
    return [REDUCTIONS[call.op](x, n) for x in arrays]


def broadcast(arrays: Arrays, call: Collective, n: int) -> Arrays:
    """The root's arrays on every rank: the sum of its bits and the others' zeros."""

    def one(x: jax.Array) -> jax.Array:
        bits = _to_bits(x)
        mine = lax.axis_index(AXIS) == call.root
        return _from_bits(lax.psum(jnp.where(mine, bits, jnp.zeros_like(bits)), AXIS), x.dtype)

    return [one(x) for x in arrays]


def all_gather(arrays: Arrays, call: Collective, n: int) -> Arrays:
    """Each `(d0, ...)` of all ranks, one after another, in the shape of its result."""
    gathered = [_from_bits(lax.all_gather(_to_bits(x), AXIS), x.dtype) for x in arrays]
    return [g.reshape(shape) for g, shape in zip(gathered, call.shapes, strict=True)]


def all_gather_list(arrays: Arrays, call: Collective, n: int) -> Arrays:
    """One `(d0, ...)` of each rank, as n results."""
    (x,) = arrays
    gathered = _from_bits(lax.all_gather(_to_bits(x), AXIS), x.dtype)
    return [gathered[i].reshape(shape) for i, shape in enumerate(call.shapes)]


def reduce_scatter(arrays: Arrays, call: Collective, n: int) -> Arrays:
    """Each `(n * d0, ...)` reduced over the ranks; rank i keeps piece i of `(d0, ...)`."""
    return [
        _scatter_reduced(x.reshape(n, *shape), call.op, n)
        for x, shape in zip(arrays, call.shapes, strict=True)
    ]


def reduce_scatter_list(arrays: Arrays, call: Collective, n: int) -> Arrays:
    """n arrays of `(d0, ...)`, reduced over the ranks; rank i keeps the i-th."""
    return [_scatter_reduced(jnp.stack(arrays), call.op, n)]


def scatter(arrays: Arrays, call: Collective, n: int) -> Arrays:
    """The root's `(n, d0, ...)`, of which rank i gets piece i; other ranks' are not read."""
    (x,) = arrays
    bits = _to_bits(x)
    bits = jnp.where(lax.axis_index(AXIS) == call.root, bits, jnp.zeros_like(bits))
    return [_from_bits(lax.psum_scatter(bits, AXIS), x.dtype)]


def all_to_all(arrays: Arrays, call: Collective, n: int) -> Arrays:
    """`(n * d0, ...)` whose piece i goes to rank i, in the shape of the result."""
    (x,) = arrays
    bits = _to_bits(x.reshape(n, x.shape[0] // n, *x.shape[1:]))
    return [_from_bits(lax.all_to_all(bits, AXIS, 0, 0), x.dtype).reshape(call.shapes[0])]


def _scatter_reduced(pieces: jax.Array, op: str, n: int) -> jax.Array:
    if op in ("sum", "avg") and pieces.dtype != np.bool_:
        total = lax.psum_scatter(pieces, AXIS)
        return _divide(total, n) if op == "avg" else total
    swapped = _from_bits(lax.all_to_all(_to_bits(pieces), AXIS, 0, 0), pieces.dtype)
    return fold(_PAIRWISE[op], [swapped[i] for i in range(n)])


def _sum(x: jax.Array, n: int) -> jax.Array:
    """Truth values add as in PyTorch: true if one is."""
    return _max(x, n) if x.dtype == np.bool_ else lax.psum(x, AXIS)


def _average(x: jax.Array, n: int) -> jax.Array:
    return _sum(x, n) if x.dtype == np.bool_ else _divide(lax.psum(x, AXIS), n)


def _max(x: jax.Array, n: int) -> jax.Array:
    return _as_bytes(lambda y: lax.pmax(y, AXIS), x)


def _min(x: jax.Array, n: int) -> jax.Array:
    return _as_bytes(lambda y: lax.pmin(y, AXIS), x)


def _folded(op: str) -> Callable[[jax.Array, int], jax.Array]:
    def run(x: jax.Array, n: int) -> jax.Array:
        gathered = _from_bits(lax.all_gather(_to_bits(x), AXIS), x.dtype)
        return fold(_PAIRWISE[op], [gathered[i] for i in range(n)])

    return run


def _divide(total: jax.Array, n: int) -> jax.Array:
    """Integers round towards zero, as NCCL's average does."""
    count = jnp.asarray(n, total.dtype)
    return lax.div(total, count)


def _as_bytes(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """Truth values reduce as 0 and 1."""
    if x.dtype != np.bool_:
        return function(x)
    return function(x.astype(np.uint8)).astype(np.bool_)


def _to_bits(x: jax.Array) -> jax.Array:
    """Unsigned integers that hold the same bits, with one more dim for complex numbers."""
    if x.dtype == np.bool_:
        return x.astype(np.uint8)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.stack([x.real, x.imag], axis=-1)
    if jnp.issubdtype(x.dtype, jnp.unsignedinteger):
        return x
    return lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}"))


def _from_bits(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    if dtype == np.bool_:
        return bits.astype(np.bool_)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = lax.bitcast_convert_type(bits, np.finfo(dtype).dtype)
        return lax.complex(parts[..., 0], parts[..., 1])
    return bits if bits.dtype == dtype else lax.bitcast_convert_type(bits, dtype)


_PAIRWISE: Mapping[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "sum": jnp.add,
    "avg": jnp.add,  # of truth values only
    "product": jnp.multiply,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "band": jnp.bitwise_and,
    "bor": jnp.bitwise_or,
    "bxor": jnp.bitwise_xor,
}

REDUCTIONS: Mapping[str, Callable[[jax.Array, int], jax.Array]] = {
    "sum": _sum,
    "avg": _average,
    "max": _max,
    "min": _min,
    "product": _folded("product"),
    "band": _folded("band"),
    "bor": _folded("bor"),
    "bxor": _folded("bxor"),
}

BODIES: Mapping[str, Callable[[Arrays, Collective, int], Arrays]] = {
    "all_reduce": all_reduce,
    "reduce": all_reduce,
    "broadcast": broadcast,
    "all_gather": all_gather,
    "all_gather_list": all_gather_list,
    "gather": all_gather_list,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_list": reduce_scatter_list,
    "scatter": scatter,
    "all_to_all": all_to_all,
}
