# SPDX-License-Identifier: Apache-2.0
"""What a Pallas kernel computes, read from the Mosaic program that XLA's schedule carries.

A kernel is a custom call: XLA knows nothing of it but its operands, and few kernels state a
cost. Its program says what one step of its grid multiplies and computes; steps that a condition
on the grid's indices leaves out, as those above the diagonal of causal attention, are not
counted. Not modelled: how often a block is copied from HBM, waiting for DMA, loops whose bounds
are data (counted once), and conditions on data (counted as true).

Legend: ``[m, k] x [k, n]``.
"""

from __future__ import annotations

import base64
import functools
import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

#: A number on the grid: one for each step, along the axes that it depends on; None: unknown.
OnGrid = np.ndarray[Any, Any] | None

_BODY = re.compile(r'"body": ?"([A-Za-z0-9+/=]+)"')
_VECTOR = re.compile(r"vector<([\dx]+)x([a-z]\w*)>")
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "addi": operator.add,
    "subi": operator.sub,
    "muli": operator.mul,
    "divsi": operator.floordiv,
    "remsi": operator.mod,
    "minsi": np.minimum,
    "maxsi": np.maximum,
    "andi": operator.and_,
    "ori": operator.or_,
    "xori": operator.xor,
}
#: By the number of MLIR's predicate; unsigned ones as signed, as indices are not negative.
_COMPARED = (
    *(operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge),
    *(operator.lt, operator.le, operator.gt, operator.ge),
)
_SAME = frozenset(("extui", "extsi", "trunci", "index_cast"))
_NO_WORK = frozenset(("constant", "broadcast", "shape_cast", "iota", "bitcast", "load"))


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What all steps of a kernel's grid do.

    Attributes:
        products: how often, m, k, n, element type and passes over the matrix unit.
        vector_operations: elements that the vector unit computes.
    """

    products: tuple[tuple[float, int, int, int, str, int], ...]
    vector_operations: float

    @property
    def flops(self) -> float:
        """Multiplications and additions of its products."""
        return sum(2.0 * times * m * k * n for times, m, k, n, _, _ in self.products)


def work_of(text: str) -> KernelWork | None:
    """The work of a custom call, by its text; None if it carries no program that can be read."""
    found = _BODY.search(text)
    return _work_of(found[1]) if found else None


@functools.lru_cache(maxsize=64)  # layers share their kernels
def _work_of(body: str) -> KernelWork | None:
    from jax._src.lib import tpu
    from jax.interpreters import mlir
    from jaxlib.mlir import ir

    context = mlir.make_ir_context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    try:
        with context:
            module = ir.Module.parse(base64.b64decode(body))
            for function in module.body.operations:
                if "iteration_bounds" in function.attributes:
                    return _Reader(function).work()
    except (ValueError, ir.MLIRError):
        return None  # another version's program, or none
    return None


class _Reader:
    """Counts the work of a kernel's function, over its grid."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._values: dict[Any, OnGrid] = {}
        self._products: list[tuple[float, int, int, int, str, int]] = []
        self._vector = 0.0
        self._steps = 1.0

    def work(self) -> KernelWork:
        """The work of all steps."""
        bounds = [int(n) for n in self._function.attributes["iteration_bounds"]]
        grid = [max(n, 1) for n in bounds]  # a negative bound is known only when it runs
        self._steps = float(math.prod(grid))
        block = self._function.regions[0].blocks[0]
        for axis, indices in zip(block.arguments, np.ogrid[tuple(map(slice, grid))], strict=False):
            self._values[axis] = indices
        self._walk(block.operations, np.ones(()))
        return KernelWork(tuple(self._products), self._vector)

    def _walk(self, operations: Any, times: np.ndarray[Any, Any]) -> None:
        """Counts operations that each step runs so many times."""
        for one in operations:
            name = one.name.rpartition(".")[2]
            if name in ("if", "for", "while"):
                self._nested(name, one, times)
            elif name in ("matmul", "contract"):
                self._product(one, times)
            elif _is_vector(one):
                if name not in _NO_WORK:
                    self._vector += self._steps * float(times.mean()) * _elements(one)
            elif len(one.results) == 1:
                self._values[one.results[0]] = self._scalar(name, one)

    def _nested(self, name: str, one: Any, times: np.ndarray[Any, Any]) -> None:
        if name == "if":
            condition = self._values.get(one.operands[0])
            shares = [np.ones(()), np.zeros(())]
            if condition is not None:
                shares = [condition != 0, condition == 0]
            for region, share in zip(one.regions, shares, strict=False):
                self._in_blocks(region, times * share)
            return
        trips: OnGrid = np.ones(())
        if name == "for":
            low, high, step = (self._values.get(value) for value in list(one.operands)[:3])
            if low is not None and high is not None and step is not None:
                trips = np.maximum(0, -((low - high) // step))
        for region in one.regions:
            self._in_blocks(region, times * trips)

    def _in_blocks(self, region: Any, times: np.ndarray[Any, Any]) -> None:
        for block in region.blocks:
            self._walk(block.operations, times)

    def _product(self, one: Any, times: np.ndarray[Any, Any]) -> None:
        dims, _ = _shape(one.results[0])
        left, dtype = _shape(one.operands[0])
        columns = dims[-1] if dims else 1
        rows = math.prod(dims[:-1])
        depth = max(1, math.prod(left) // max(1, rows))
        runs = self._steps * float(times.mean())
        if runs:
            kind = _rate_of(dtype)
            passes = 6 if kind == "f32" and _is_precise(one) else 1
            self._products.append((runs, rows, depth, columns, kind, passes))

    def _scalar(self, name: str, one: Any) -> OnGrid:
        """A number that can be known before data is; None if it cannot."""
        if name == "constant":
            return _constant(one)
        given: list[Any] = [self._values.get(value) for value in one.operands]
        if not given or any(value is None for value in given):
            return None
        if name in _SAME:
            return np.asarray(given[0])
        if name in _BINARY and len(given) == 2:
            with np.errstate(divide="ignore", invalid="ignore"):
                return np.asarray(_BINARY[name](*given))
        if name == "cmpi":
            return np.asarray(_COMPARED[int(one.attributes["predicate"])](*given))
        return np.asarray(np.where(*given)) if name == "select" else None


def _constant(one: Any) -> OnGrid:
    try:
        return np.asarray(int(one.attributes["value"]))
    except (TypeError, ValueError):
        return None


def _is_vector(one: Any) -> bool:
    return any("vector<" in str(value.type) for value in _values(one))


def _values(one: Any) -> Iterator[Any]:
    yield from one.results
    yield from one.operands


def _elements(one: Any) -> int:
    """Elements that an operation goes over; stores only move them."""
    if not one.results:
        return 0
    return max(math.prod(_shape(value)[0]) for value in _values(one))


def _shape(value: Any) -> tuple[tuple[int, ...], str]:
    """Sizes and element type of a vector; no sizes of others."""
    found = _VECTOR.match(str(value.type))
    if not found:
        return (), ""
    return tuple(int(n) for n in found[1].split("x")), found[2]


def _rate_of(dtype: str) -> str:
    """The matrix unit's rate for an element type of MLIR's."""
    if dtype.startswith("f8"):
        return "fp8"
    if dtype in ("i8", "i4"):
        return "int8"
    return "f32" if dtype == "f32" else "bf16"


def _is_precise(one: Any) -> bool:
    return "precision" in one.attributes and "fp32" in str(one.attributes["precision"])
