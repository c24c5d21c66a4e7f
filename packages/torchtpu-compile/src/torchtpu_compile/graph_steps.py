# SPDX-License-Identifier: Apache-2.0
"""The steps of a graph: a program, or eager calls of operators.

Each takes what it needs from the values by node, and leaves its results there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.utils._python_dispatch import _disable_current_modes
from torchtpu_core.errors import TorchTPUError

from torchtpu_compile import graph_failures, numbers
from torchtpu_compile.errors import GraphError, caller_at, describe
from torchtpu_compile.placement import is_number
from torchtpu_compile.program import Program

Values = dict[Node, Any]


@dataclass(slots=True)
class DeviceStep:
    """One program within a graph.

    Attributes:
        program: what runs.
        home: index of the device for a program that no operand tells it; None: the current one.
    """

    program: Program
    home: int | None = None

    def run(self, values: Values) -> None:
        """Take operands from `values` and put the results there."""
        with torch.accelerator.device_index(self.home):
            self._run(values)

    def _run(self, values: Values) -> None:
        interface = self.program.interface
        operands = tuple(number_of(n, values) for n in interface.numbers)
        results = graph_failures.run(
            self.program,
            [values[n] for n in interface.tensors],
            [host_number(values[n]) for n in interface.scalars],
            operands,
        )
        values.update(zip(interface.outputs, results, strict=True))

    def reads(self) -> list[Node]:
        """The values that it takes."""
        interface = self.program.interface
        given = [leaf for number in interface.numbers for leaf in numbers.leaves(number)]
        return [*interface.tensors, *interface.scalars, *given]

    def writes(self) -> Sequence[Node]:
        """The values that it leaves."""
        return self.program.interface.outputs


@dataclass(slots=True)
class EagerStep:
    """Ordinary calls of operators, one by one, each from the user's line."""

    nodes: Sequence[Node]
    calls: Sequence[Callable[..., Any]] = field(init=False)

    def __post_init__(self) -> None:
        self.calls = [caller_at(node) for node in self.nodes]

    def run(self, values: Values) -> None:
        """Call each node's operator on tensors.

        Raises:
            GraphError: a call failed for another reason than what the backend reports itself.
            LinAlgError: a matrix has no inverse or factor; names the user's line.
        """
        for node, call in zip(self.nodes, self.calls, strict=True):
            args, kwargs = torch.fx.node.map_arg(
                (node.args, node.kwargs), lambda source: number_of(source, values)
            )
            try:
                values[node] = call(node.target, args, kwargs)
            except TorchTPUError:
                raise
            except torch.linalg.LinAlgError as error:
                raise torch.linalg.LinAlgError(f"{error} In {describe(node)}.") from error
            except (NotImplementedError, AttributeError, KeyError) as error:
                raise GraphError.at_node(node, error) from error

    def reads(self) -> list[Node]:
        """The values that it takes."""
        sources = (source for node in self.nodes for source in node.all_input_nodes)
        return [leaf for source in sources for leaf in numbers.leaves(source)]

    def writes(self) -> Sequence[Node]:
        """The values that it leaves."""
        return self.nodes


def number_of(node: Node, values: Values) -> Any:
    """The value of a node; of a number, what it is computed to."""
    return numbers.evaluate(node, values.__getitem__) if is_number(node) else values[node]


def host_number(scalar: torch.Tensor) -> bool | int | float:
    """The value of a 0-d CPU tensor.

    Where a dispatch mode is active, as around the first call of AOTAutograd's code, PyTorch makes
    a plain number of the tensor of a number (``x * 2`` saves one), which then has no value to read.
    """
    if torch._C._len_torch_dispatch_stack():
        with _disable_current_modes():
            return scalar.item()
    return scalar.item()
