# SPDX-License-Identifier: Apache-2.0
"""Lookups in captured tensors by the functions of flex attention.

The definition calls `score_mod` and `mask_mod` for all pairs of positions, a kernel only for
those of blocks that the mask shows. What a function looks up for a hidden pair has no effect,
so its index may be anything, as for the pages of a cache that another sequence owns. Lookups
are therefore unchecked where they stand, and an index is an error only where the mask shows the
pair. Positions that are indices themselves, or with a number added, need no check where they fit
the dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torchtpu_core.lowering import addressing

_aten = torch.ops.aten
_LOOKUP = _aten.index.Tensor
_UNCHECKED = {
    _LOOKUP: _aten._unsafe_index.Tensor,
    _aten.index_put.default: _aten._unsafe_index_put.default,
}


def _added(
    shape: Sequence[Any], indices: Sequence[torch.Tensor], values: torch.Tensor
) -> torch.Tensor:
    """The gradient of a captured tensor: `values` of all pairs added up at their indices.

    Along a dimension in which no index changes they are added up first.
    """
    same = [
        d
        for d in range(values.dim())
        if all(statically_known_true(index.stride(d) == 0) for index in indices)
    ]
    if same:
        values = values.sum(same, keepdim=True)
    for d in same:
        indices = [index.narrow(d, 0, 1) for index in indices]
    return _aten._unsafe_index_put(values.new_zeros(shape), indices, values, True)


def decompositions() -> dict[Any, Callable[..., torch.Tensor]]:
    """Of what the derivatives of the functions are made of."""
    return {torch.ops.flex_lib.zeros_and_scatter.default: _added}


def uncheck(graph: Graph) -> None:
    """Let no lookup of a definition check its indices."""
    for node in graph.nodes:
        node.target = _UNCHECKED.get(node.target, node.target)


def require_legal(
    query: torch.Tensor,
    key: torch.Tensor,
    _value: torch.Tensor,
    score_mod: GraphModule,
    block_mask: Sequence[Any],
    _scale: float,
    _options: Any,
    score_buffers: Sequence[Any],
    mask_buffers: Sequence[Any],
) -> None:
    """State, in a traced definition, that every index is legal for the pairs that the mask shows.

    The arguments are those of the op `flex_attention`.
    """
    mask_mod = block_mask[-1]
    counts = (*query.shape[:3], key.shape[2])
    lookups = [_Lookups(mask_mod, counts, 0), _Lookups(score_mod, counts, 1)]
    if not any(found.open for found in lookups):
        return
    at = [torch.arange(n, device=query.device) for n in counts]
    score = query.new_zeros(())
    shown = _over_pairs(mask_mod, 0, mask_buffers)(*at, *mask_buffers)
    operands = [(*at, *mask_buffers), (score, *at, *score_buffers)]
    for found, values in zip(lookups, operands, strict=True):
        if not found.open:
            continue
        legal = _over_pairs(found.run, found.before, values[found.before + 4 :])(*values)
        for fine, text in zip(legal, found.texts, strict=True):
            _aten._assert_async.msg((fine | ~shown).all(), text)


def _over_pairs(
    function: Callable[..., Any], before: int, buffers: Sequence[Any]
) -> Callable[..., Any]:
    """A function of four positions as one of four lists of them."""
    from torch.nn.attention.flex_attention import _vmap_for_bhqkv

    return _vmap_for_bhqkv(function, prefix=(None,) * before, suffix=(None,) * len(buffers))


class _Lookups(Interpreter):  # type: ignore[misc]
    """`score_mod` or `mask_mod`, as a function that says of each index whether it is legal.

    Args:
        module: the graph of the function.
        counts: how many batches, heads, queries and keys there are.
        before: how many operands precede the four positions.

    Attributes:
        open: of what the graph looks up, what only the program can check.
        texts: what is wrong where one of them is illegal; known once it was run.
    """

    def __init__(self, module: GraphModule, counts: Sequence[Any], before: int) -> None:
        super().__init__(module, garbage_collect_values=False)
        inputs = [n for n in module.graph.nodes if n.op == "placeholder"]
        self._counts = dict(zip(inputs[before : before + 4], counts, strict=True))
        self.before = before
        self.texts: list[str] = []
        self.open: list[tuple[Node, int, Node]] = [
            (node.args[0], dim, index)
            for node in module.graph.nodes
            if node.target is _LOOKUP
            for dim, index in enumerate(node.args[1])
            if index is not None and not self._fits(index, node.args[0], dim)
        ]

    def _fits(self, index: Node, source: Node, dim: int) -> bool:
        tensor, start = source.meta.get("val"), 0
        if index.target is _aten.add.Tensor and isinstance(index.args[1], int) and not index.kwargs:
            index, start = index.args  # type: ignore[assignment]
        count = self._counts.get(index)
        if count is None or start < 0 or not isinstance(tensor, torch.Tensor):
            return False
        return statically_known_true(start + count <= tensor.shape[dim])

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """As in the definition, whose lookups are unchecked."""
        return super().call_function(_UNCHECKED.get(target, target), args, kwargs)

    def output(self, _target: Any, _args: Any, _kwargs: Any) -> Any:
        """Instead of the function's result, a bool for each open lookup."""
        self.texts = []
        return tuple(self._legal(*lookup) for lookup in self.open)

    def _legal(self, source: Node, dim: int, index: Node) -> torch.Tensor:
        size, place = self.env[source].shape[dim], self.env[index]
        known = isinstance(size, int)
        what = addressing.out_of_bounds(dim, size) if known else "index is out of bounds"
        self.texts.append(f"{what}, where the mask of flex_attention shows it")
        return (place >= -size) & (place < size)
