# SPDX-License-Identifier: Apache-2.0
"""What a compiled graph says when XLA could not run it: what fills the device, or which op failed.

Nothing is kept for it while programs run. The ops of one that failed run one by one, as a trace
of Fused Eager's would: its operands still have their values. What XLA finds out after the call
has returned is not told by op, for the operands may be gone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Node
from torchtpu_core.errors import ProgramFailedError
from torchtpu_core.tpu.eager import EagerMode, set_eager_mode

from torchtpu_compile import graph_memory, numbers
from torchtpu_compile.errors import caller_at, describe
from torchtpu_compile.placement import is_number
from torchtpu_compile.program import Program


def telling(
    function: Callable[..., Any], programs: Sequence[Program], operands: Sequence[int] | None = None
) -> Callable[..., Any]:
    """A function whose errors say more of what XLA could not run.

    Args:
        function: runs the graph; takes the arguments one by one or as a list.
        programs: what it runs.
        operands: positions among the arguments of the operands of its one program, if it is
            that program's own native call.
    """

    @functools.wraps(function, updated=())
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except torch.OutOfMemoryError as error:
            report = graph_memory.report(programs)
            raise torch.OutOfMemoryError(f"{error}\n{report}") from error
        except ProgramFailedError as error:
            if operands is None:
                raise
            given = arguments[0] if isinstance(arguments[0], list) else arguments
            raise _told(error, programs[0], [given[i] for i in operands], (), ()) from error

    return call


def run(
    program: Program, tensors: list[torch.Tensor], scalars: Sequence[Any], values: tuple[Any, ...]
) -> list[torch.Tensor]:
    """Run a program on what its interface lists.

    Raises:
        ProgramFailedError: names the op that failed, if it fails by itself too.
    """
    try:
        return program(tensors, scalars, values)
    except ProgramFailedError as error:
        raise _told(error, program, tensors, scalars, values) from error


def _told(
    error: ProgramFailedError,
    program: Program,
    tensors: Sequence[torch.Tensor],
    scalars: Sequence[Any],
    values: Sequence[Any],
) -> ProgramFailedError:
    interface = program.interface
    known: dict[Node, Any] = dict(zip(interface.tensors, tensors, strict=True))
    for node, scalar in zip(interface.scalars, scalars, strict=True):
        known[node] = torch.tensor(scalar, dtype=node.meta["val"].dtype)
    known |= dict(zip(interface.numbers, values, strict=True))
    known |= {node: torch.from_numpy(array) for node, array in interface.constants.items()}
    op = _first_that_fails(program.nodes, known)
    return ProgramFailedError(f"{error}\nWhat fails is {describe(op)}.") if op else error


def _first_that_fails(nodes: Sequence[Node], values: dict[Node, Any]) -> Node | None:
    """The first op that XLA cannot run; None: all run, or one cannot be called by itself."""
    try:
        with torch.no_grad(), set_eager_mode(EagerMode.STRICT):
            for node in nodes:
                if is_number(node):
                    continue
                args, kwargs = torch.fx.node.map_arg(
                    (node.args, node.kwargs), lambda n: numbers.evaluate(n, values.__getitem__)
                )
                values[node] = caller_at(node)(node.target, args, kwargs)
                torch.tpu.synchronize()
    except ProgramFailedError:
        return node
    except Exception:  # the failure itself is what is reported
        return None
    return None
