# SPDX-License-Identifier: Apache-2.0
"""Counts the work of a StableHLO module: the step from a program to its cost.

Work is per device. A module for many devices is taken to be split evenly, except inside
a manual region, whose shapes are already those of one device. HBM traffic is that of a
fused program: the arguments are read, the results written. Not counted: values that
spill between fusions, layout changes, and padding to the tiles of the matrix unit. An
operation that is not known counts as one operation per element of its result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from torchtpu_core.errors import ProgramTextError
from torchtpu_core.simulator import matmul_work, op_classes
from torchtpu_core.simulator.cost import Collective, CollectiveKind, ProgramCost
from torchtpu_core.simulator.groups_text import read_groups
from torchtpu_core.simulator.hlo_text import Function, Module, Operation, Value, read_module
from torchtpu_core.simulator.loops import integers, trip_count
from torchtpu_core.units import ceil_div

_SHARDED_MESH = re.compile(r"sdy\.sharding<@([\w$.-]+), \[(.*?)\](?:>|, )")
_AXIS_NAME = re.compile(r"\"([^\"]+)\"(?::\(\d+\)(\d+))?")
_GSPMD = re.compile(r"devices=\[([\d,]+)\]")
_MANUAL_AXES = re.compile(r"manual_axes=\{([^}]*)\}")
_MESH_NAME = re.compile(r"<@([\w$.-]+),")
_WINDOW = re.compile(r"window_dimensions = array<i64: ([\d, ]+)>")

_COLLECTIVES = {f"stablehlo.{kind}": kind for kind in CollectiveKind}


def program_cost(text: str) -> ProgramCost:
    """The work of a program, from the text of its StableHLO.

    Args:
        text: as ``jax.jit(f).lower(...).as_text()`` gives it.

    Raises:
        ProgramTextError: the text is not of that form.
    """
    module = read_module(text)
    try:
        return _Counter(module).entry_cost()
    except (ValueError, IndexError) as error:
        raise ProgramTextError(
            f"An operation of the program is not printed as JAX prints it: {error}. "
            "Pass jax.jit(f).lower(...).as_text()."
        ) from error


class _Counter:
    """Counts functions, each once for each way its shapes are split."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.counted: dict[tuple[str, int], ProgramCost] = {}

    def entry_cost(self) -> ProgramCost:
        """Work of the entry function, with its traffic to and from HBM."""
        entry, partitions = self.module.entry, self.module.partitions
        return self.region_cost(entry.body, {}, partitions) + ProgramCost(
            bytes_hbm=self._boundary_bytes(entry),
            devices=partitions * self.module.replicas,
        )

    def function_cost(self, name: str, split: int) -> ProgramCost:
        """Work of one call of a function of the module."""
        key = (name, split)
        if key not in self.counted:
            function = self.module.functions.get(name)
            body = function.body if function else []
            self.counted[key] = self.region_cost(body, {}, split)
        return self.counted[key]

    def region_cost(
        self, operations: Sequence[Operation], outer: Mapping[str, int], split: int
    ) -> ProgramCost:
        """Work of a list of operations whose arrays are split over `split` devices."""
        constants = {**outer, **integers(operations)}
        total = _Sum()
        for operation in operations:
            total.add(operation, split)
            if operation.regions or operation.name in op_classes.CALLS:
                total.nested.append(self._nested_cost(operation, constants, split))
        return total.cost()

    def _nested_cost(
        self, operation: Operation, constants: Mapping[str, int], split: int
    ) -> ProgramCost:
        """Work of the functions and regions that an operation runs."""
        if operation.name in op_classes.CALLS:
            return self.function_cost(operation.callee, split)
        if operation.name == "stablehlo.while":
            runs = trip_count(operation, constants)
            once = [self.region_cost(region, constants, split) for region in operation.regions]
            cost = sum(once, ProgramCost(unknown_loops=int(runs is None)))
            return cost.times(1 if runs is None else runs)
        if operation.name in op_classes.BRANCHES:
            branches = [self.region_cost(region, constants, split) for region in operation.regions]
            return max(branches, key=lambda cost: cost.flops)
        if operation.name == "sdy.manual_computation":
            inside = self._split_inside(operation, split)
            return self.region_cost(operation.regions[0], constants, inside)
        return ProgramCost()

    def _split_inside(self, operation: Operation, split: int) -> int:
        """Devices that still share the arrays in a region that is manual on some axes."""
        axes = _MANUAL_AXES.search(operation.text)
        mesh = _MESH_NAME.search(operation.text)
        sizes = self.module.meshes.get(mesh[1], {}) if mesh else {}
        names = [name for name, _ in _AXIS_NAME.findall(axes[1])] if axes else []
        manual = math.prod(sizes.get(name, 1) for name in names)
        return max(1, split // manual)

    def _boundary_bytes(self, function: Function) -> int:
        """Bytes of one device's share of all arguments and results."""
        return sum(
            ceil_div(value.type.size_bytes, self._shards(value, default))
            for values, default in (
                (function.arguments, 1),
                (function.results, self.module.partitions),
            )
            for value in values
        )

    def _shards(self, value: Value, default: int) -> int:
        """Devices over which a value is split; `default` where it does not say."""
        if match := _SHARDED_MESH.search(value.attributes):
            sizes = self.module.meshes.get(match[1], {})
            axes = _AXIS_NAME.findall(match[2])
            return math.prod(int(part) if part else sizes.get(name, 1) for name, part in axes)
        if match := _GSPMD.search(value.attributes):
            counts = [int(count) for count in match[1].split(",")]
            replicated = "last_tile_dim_replicate" in value.attributes
            return math.prod(counts[:-1] if replicated else counts)
        return default


class _Sum:
    """Adds up the operations of one region."""

    def __init__(self) -> None:
        self.matmul: dict[matmul_work.MatmulClass, int] = {}
        self.elementwise = 0
        self.transcendentals = 0
        self.collectives: list[Collective] = []
        self.nested: list[ProgramCost] = []

    def add(self, operation: Operation, split: int) -> None:
        """Adds an operation, without what it calls and without its regions."""
        name = operation.name
        if name in op_classes.FREE:
            return
        if name in matmul_work.COUNTERS:
            kind, flops = matmul_work.COUNTERS[name](operation)
            self.matmul[kind] = self.matmul.get(kind, 0) + ceil_div(flops, split)
        elif name in _COLLECTIVES:
            self.collectives.append(_collective(operation, split))
        elif op_classes.is_transcendental(name):
            self.transcendentals += ceil_div(_largest(operation), split)
        else:
            self.elementwise += ceil_div(_element_operations(operation), split)

    def cost(self) -> ProgramCost:
        """The sum, with everything nested."""
        own = ProgramCost(
            matmul_flops=self.matmul,
            elementwise_flops=self.elementwise,
            transcendentals=self.transcendentals,
            collectives=tuple(self.collectives),
        )
        return sum(self.nested, own)


def _largest(operation: Operation) -> int:
    """Elements of the largest result."""
    return max((tensor.elements for tensor in operation.result_types), default=0)


def _element_operations(operation: Operation) -> int:
    """Operations on single elements of an operation that is not matrix work.

    A reduction touches every element of its input, a window reduction every element of
    every window, a sort makes ``n log2 n`` comparisons.
    """
    if operation.name in op_classes.READ_WHOLE_INPUT:
        return max((tensor.elements for tensor in operation.operand_types), default=0)
    elements = _largest(operation)
    if operation.name == "stablehlo.reduce_window":
        window = _WINDOW.search(operation.text)
        return elements * (math.prod(map(int, window[1].split(","))) if window else 1)
    if operation.name == "stablehlo.sort":
        return elements * max(1, math.ceil(math.log2(max(elements, 2))))
    if operation.name == "stablehlo.scatter":
        operands = operation.operand_types
        return operands[-1].elements if operands else elements
    return elements


def _collective(operation: Operation, split: int) -> Collective:
    """The collective of an operation."""
    operand_bytes = sum(tensor.size_bytes for tensor in operation.operand_types)
    result_bytes = sum(tensor.size_bytes for tensor in operation.result_types)
    return Collective(
        kind=_COLLECTIVES[operation.name],
        operand_bytes=ceil_div(operand_bytes, split),
        result_bytes=ceil_div(result_bytes, split),
        groups=read_groups(operation.text),
    )
