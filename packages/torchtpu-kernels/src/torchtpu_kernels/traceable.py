# SPDX-License-Identifier: Apache-2.0
"""A `JaxCallable` inside `torch.compile`: what Dynamo can follow.

Dynamo cannot trace JAX, and need not: everything about a call but its tensors is known
while it traces. So the call is split into a function of constants, which Dynamo runs
once (`_prepare`), and the op, which goes into the graph. A size that Dynamo leaves open is
known by a name, the same for sizes that are surely equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchtpu_kernels import open_sizes
from torchtpu_kernels.errors import KernelArgumentError
from torchtpu_kernels.open_sizes import Operand

#: Why a call is no part of a graph, and what makes it one.
_OPEN_SIZES = (
    "sizes of a JAX kernel's tensors vary, and JAX cannot trace the kernel without knowing them: "
    "with dynamic=False in torch.compile each size is a graph of its own, with the kernel in it"
)

if TYPE_CHECKING:
    from torchtpu_kernels.jax_callable import JaxCallable


def call(function: JaxCallable, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What ``function(*args, **kwargs)`` does, in terms that Dynamo traces."""
    tensors: list[torch.Tensor] = []
    sizes: list[Any] = []
    described = tuple([_describe(a, tensors, sizes) for a in args])
    named = tuple([(k, _describe(v, tensors, sizes)) for k, v in kwargs.items()])
    prepared = _prepare(function, described, named)
    if prepared is None:
        torch._dynamo.graph_break(msg=_OPEN_SIZES)  # with ``fullgraph=True`` an error
    kernel, tree, order, aliases = prepared
    operands = [tensors[i] for i in order]
    results = list(torch.ops.torchtpu.jax_call(operands, kernel))
    for operand, result in aliases:
        operands[operand].copy_(results[result])
        results[result] = operands[operand]
    return _assemble(tree, results)


def _describe(value: Any, tensors: list[torch.Tensor], sizes: list[Any]) -> Any:
    """A constant that stands for an argument.

    Args:
        value: the argument.
        tensors: those of the arguments; the ones in this are appended.
        sizes: the open sizes; new ones are appended.
    """
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return ("tensor", tuple([_size(n, sizes) for n in value.shape]), value.dtype)
    if isinstance(value, list):
        return ("list", tuple([_describe(v, tensors, sizes) for v in value]))
    if isinstance(value, tuple):
        return ("tuple", tuple([_describe(v, tensors, sizes) for v in value]))
    return ("value", _fixed(value))


def _size(size: Any, known: list[Any]) -> Any:
    """A size; of one that Dynamo leaves open, its name."""
    from torch.fx.experimental.symbolic_shapes import has_static_value, statically_known_true

    if has_static_value(size):
        return size
    for i, other in enumerate(known):
        if statically_known_true(size == other):
            return f"d{i}"
    known.append(size)
    return f"d{len(known) - 1}"


def _fixed(value: Any) -> Any:
    """The value; of a number that Dynamo has left open since it changed, the constant it is now."""
    if not isinstance(value, (int, float)):
        return value
    (constant,) = {value: None}  # a key is a constant for Dynamo
    return constant


def _prepare(function: JaxCallable, described: Any, named: Any) -> Any:
    """Kernel, tree of the results, order of the operands, and aliases; all constants.

    None: JAX has to know the open sizes.
    """
    stand_ins: list[Operand] = []
    args = [_restore(d, stand_ins) for d in described]
    kwargs = {k: _restore(d, stand_ins) for k, d in named}
    operands, plan, owners = function.parameters.bind(args, kwargs, kind=Operand)
    kernel = function.kernel(plan)
    try:
        results = function.results_like(plan, operands)
    except Exception:  # at its true sizes it works, or says why it does not
        if open_sizes.is_open([t.shape for t in operands]):
            return None
        raise
    aliases: tuple[tuple[int, int], ...] = ()
    if function.input_output_aliases:
        aliases = tuple(function.aliases(plan, operands, owners))
    position = {id(t): i for i, t in enumerate(stand_ins)}
    order = tuple(position[id(t)] for t in operands)
    return kernel.name, _tree(results, function.name), order, aliases


# What torch._dynamo.assume_constant_result sets; importing Dynamo takes seconds.
_prepare._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _restore(described: Any, stand_ins: list[Operand]) -> Any:
    kind, value, *rest = described
    if kind == "tensor":
        stand_ins.append(Operand(tuple(open_sizes.dimension(s) for s in value), rest[0]))
        return stand_ins[-1]
    if kind == "value":
        return value
    return (list if kind == "list" else tuple)(_restore(v, stand_ins) for v in value)


def _tree(value: Any, name: str) -> Any:
    """Nested results as nested constants; tensors by number."""
    if type(value) in (list, tuple):
        return (type(value).__name__, tuple(_tree(v, name) for v in value))
    if type(value) is dict:
        return ("dict", tuple((k, _tree(v, name)) for k, v in value.items()))
    index = getattr(value, "index", None)
    if type(value).__name__ == "_Result":
        return ("result", index)
    if value is None or isinstance(value, (bool, int, float, str)):
        return ("value", value)
    raise KernelArgumentError(
        f"kernel {name!r} returns {type(value).__name__}; inside torch.compile a kernel's results "
        "are tensors, None, numbers, and lists, tuples and dicts of them."
    )


def _assemble(tree: Any, results: Sequence[torch.Tensor]) -> Any:
    kind, value = tree
    if kind == "result":
        return results[value]
    if kind == "value":
        return value
    if kind == "dict":
        return {k: _assemble(v, results) for k, v in value}
    parts = [_assemble(v, results) for v in value]
    return parts if kind == "list" else tuple(parts)
