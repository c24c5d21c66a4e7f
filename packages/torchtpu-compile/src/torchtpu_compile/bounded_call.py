# SPDX-License-Identifier: Apache-2.0
"""What a rule for padded sizes is given: one node with its arguments, and how to run its row.

Arguments that are sizes stay expressions until the row runs, where they become padded sizes or
numbers of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import sympy
from torch.fx import Node
from torchtpu_core.lowering.interpreter import run_overload
from torchtpu_core.lowering.promotion import Scalar
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Lowering

from torchtpu_compile import rng_states
from torchtpu_compile.errors import describe
from torchtpu_compile.padded import Padded, Sizes
from torchtpu_compile.symbols import Unbounded, expression, is_static

#: A rule gets the call and returns one value, or a list where the op returns several.
Rule = Callable[["Call"], Any]


class Number(Scalar):
    """A number whose value is an array of the program."""

    def __init__(self, kind: type, value: jax.Array) -> None:
        super().__init__(kind, value)

    def to(self, dtype: np.dtype) -> jax.Array:
        """The number as a 0-d array."""
        return self.words.astype(dtype)

    def _exact(self) -> jax.Array:
        return self.words


class Call:
    """One node on its way through a rule.

    Attributes:
        node: the node.
        sizes: the program's symbols.
        args: the arguments: `Padded`, expressions for sizes, lists, plain values.
        kwargs: the keyword arguments.
    """

    def __init__(
        self,
        node: Node,
        sizes: Sizes,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        tables: Mapping[str, Lowering],
        rng: Rng | None,
    ) -> None:
        self.node = node
        self.sizes = sizes
        self.args = list(args)
        self.kwargs = dict(kwargs)
        self.tables = tables
        self.rng = rng

    def arg(self, name: str) -> Any:
        """An argument by its name in the op's schema, or the schema's default."""
        for i, argument in enumerate(self.node.target._schema.arguments):  # type: ignore[union-attr]
            if argument.name == name:
                if i < len(self.args):
                    return self.args[i]
                return self.kwargs.get(name, argument.default_value)
        raise KeyError(name)

    def set(self, name: str, value: Any) -> None:
        """Replace an argument."""
        for i, argument in enumerate(self.node.target._schema.arguments):  # type: ignore[union-attr]
            if argument.name == name and i < len(self.args):
                self.args[i] = value
                return
        self.kwargs[name] = value

    def exprs(self, index: int | None = None) -> list[sympy.Expr]:
        """True sizes of the result (of result `index`)."""
        value = self.node.meta["val"]
        tensor = value if index is None else value[index]
        return [expression(s) for s in tensor.shape]

    def run(self, op: Any = None) -> Any:
        """The row's result on the padded arrays; sizes are padded, numbers stay run-time.

        Raises:
            Unbounded: a list that says where elements lie has numbers that only the call knows.
        """
        target = rng_states.random_op(self.node) if op is None else op
        for name in _exact_lists(self.node):
            value = self.arg(name)
            if isinstance(value, (list, tuple)) and not all(_is_fixed(v) for v in value):
                raise Unbounded(f"{describe(self.node)} has a {name} of open size")
        args = [self._plain(a) for a in self.args]
        kwargs = {k: self._plain(v) for k, v in self.kwargs.items()}
        return run_overload(target, args, kwargs, self.tables, self.rng)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, Padded):
            return value.array
        if isinstance(value, (list, tuple)):
            return [self._size(v) if isinstance(v, sympy.Expr) else self._plain(v) for v in value]
        if isinstance(value, sympy.Expr):
            return int(value) if is_static(value) else Number(int, self.sizes.true(value))
        return value

    def _size(self, expr: sympy.Expr) -> int:
        return int(expr) if is_static(expr) else self.sizes.padded(expr)

    def result(self, array: jax.Array, dims: Sequence[Any] | None = None) -> Padded:
        """A result; without `dims`, its dimensions have one factor each."""
        if dims is None:
            dims = [self.sizes.dim(e) for e in self.exprs()]
        return Padded(array, tuple(dims))


#: Lists of numbers that are not sizes: a larger one gives other results, not more of them.
_EXACT = frozenset({"stride", "padding", "dilation", "output_padding", "kernel_size", "shifts"})


def _exact_lists(node: Node) -> frozenset[str]:
    """The lists of `_EXACT` that an op takes; strides beside a size are of memory."""
    schema = getattr(node.target, "_schema", None)
    names = {argument.name for argument in schema.arguments} if schema is not None else set()
    return frozenset() if "size" in names else _EXACT & names


def _is_fixed(value: Any) -> bool:
    return not isinstance(value, sympy.Expr) or is_static(value)
