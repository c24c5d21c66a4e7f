# SPDX-License-Identifier: Apache-2.0
"""Lookups at the positions themselves, in the definition of flex attention, are views.

``bias[b, h, i, j + 3]`` of all pairs is a part of `bias`, laid along the dimensions of the scores,
and its gradient the scores' put back there; a lookup by element would be a gather and a scatter.
Lookups at anything else, or whose sizes are not known to fit, stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

_aten = torch.ops.aten
_ARANGES = frozenset({_aten.arange.default, _aten.arange.start})
_ADDITIONS = {
    _aten.add.Tensor: 1,
    _aten.add.Scalar: 1,
    _aten.sub.Tensor: -1,
    _aten.sub.Scalar: -1,
}
#: What leaves the dimensions where they are, counted from the last.
_IN_PLACE = frozenset({_aten.expand.default, _aten.slice.Tensor})
_RESHAPES = frozenset({_aten.view.default, _aten.unsqueeze.default})


@dataclass(frozen=True, slots=True)
class Place:
    """Indices ``start, start + 1, ...`` along one dimension of the pairs, alike along the others.

    Attributes:
        dim: from the last, which is -1; 0: one index for all pairs.
        start: the first.
        count: how many.
    """

    dim: int
    start: int
    count: Any

    def fits(self, size: Any) -> bool:
        """Whether all are known to be indices of a dimension of a size."""
        return self.start >= 0 and statically_known_true(self.start + self.count <= size)

    def is_whole(self, size: Any) -> bool:
        """Whether they are all indices of a dimension of a size."""
        return self.start == 0 and statically_known_true(self.count == size)


def make_views(graph: Graph, mode: Any) -> None:
    """Let lookups of a traced definition be views, and their gradients too.

    Args:
        graph: the definition.
        mode: of its fake tensors.
    """
    for node in list(graph.nodes):
        if node.target is _aten._unsafe_index.Tensor:
            places = _places(node.args[1], node.args[0])
            made = places and _view(_Writer(graph, node, mode), node, places)
        elif node.target is _aten._unsafe_index_put.default and _is_sum(node):
            places = _places(node.args[1], node)
            made = places and _gradient(_Writer(graph, node, mode), node, places)
        else:
            continue
        if made:
            node.replace_all_uses_with(made)
            graph.erase_node(node)


class _Writer:
    """Adds nodes before another one."""

    def __init__(self, graph: Graph, before: Node, mode: Any) -> None:
        self._graph, self._before, self._mode = graph, before, mode

    def __call__(self, op: Any, source: Node, *args: Any) -> Node:
        with self._graph.inserting_before(self._before), self._mode:
            made = self._graph.call_function(op, (source, *args))
            made.meta = {**self._before.meta, "val": op(source.meta["val"], *args)}
        return made


def _places(indices: Sequence[Node | None], looked_up: Any) -> list[Place] | None:
    """The place of each index if a lookup in a tensor is a view of it."""
    shape = looked_up.meta["val"].shape
    found = [_place(index) for index in indices if index is not None]
    places = [place for place in found if place is not None]
    along = [place.dim for place in places if place.dim]
    known = len(places) == len(shape) and len(along) == len(set(along))
    fits = known and all(p.fits(size) for p, size in zip(places, shape, strict=True))
    parts = [p for p, size in zip(places, shape, strict=False) if not p.is_whole(size)]
    return places if fits and all(isinstance(p.count, int) for p in parts) else None


def _place(node: Any) -> Place | None:
    """The place of a tensor of indices, None if it is no such one."""
    if not isinstance(node, Node) or not isinstance(node.meta.get("val"), torch.Tensor):
        return None
    shape = node.meta["val"].shape
    if node.target in _ARANGES:
        from_zero = len(node.args) == 1 or node.args[0] == 0
        return Place(0 if _is_one(shape[0]) else -1, 0, shape[0]) if from_zero else None
    place = _place(node.args[0]) if node.args else None
    if place is None:
        return None
    if node.target in _ADDITIONS:
        number = node.args[1]
        plain = isinstance(number, int) and not node.kwargs and len(node.args) == 2
        step = _ADDITIONS[node.target]
        return Place(place.dim, place.start + step * number, place.count) if plain else None
    if node.target in _IN_PLACE:
        stays = not place.dim or statically_known_true(shape[place.dim] == place.count)
        return place if stays else None
    if node.target in _RESHAPES:
        dim = place.dim and _moved(node.args[0].meta["val"].shape, shape, place.dim)
        return None if dim is None else Place(dim, place.start, place.count)
    return None


def _moved(old: Sequence[Any], new: Sequence[Any], dim: int) -> int | None:
    """Where a dimension is in a shape that differs by dimensions of one."""
    kept = [d for d in range(-len(old), 0) if not _is_one(old[d])]
    still = [d for d in range(-len(new), 0) if not _is_one(new[d])]
    if len(kept) != len(still) or dim not in kept:
        return None
    alike = all(statically_known_true(old[a] == new[b]) for a, b in zip(kept, still, strict=True))
    return still[kept.index(dim)] if alike else None


def _is_one(size: Any) -> bool:
    return isinstance(size, int) and size == 1


def _is_sum(node: Node) -> bool:
    """Whether an `index_put` adds up in zeros."""
    zeros = node.args[0]
    return (
        isinstance(zeros, Node)
        and zeros.target is _aten.new_zeros.default
        and node.args[3:] == (True,)
    )


def _view(write: _Writer, node: Node, places: Sequence[Place]) -> Node | None:
    result = node.meta["val"].shape
    free = [d for d in range(-len(result), 0) if d not in {place.dim for place in places}]
    if not all(_is_one(result[d]) for d in free) and not all(isinstance(n, int) for n in result):
        return None
    made: Node = node.args[0]  # type: ignore[assignment]
    for dim in reversed(range(len(places))):
        if not places[dim].dim:
            made = write(_aten.select.int, made, dim, places[dim].start)
    places = [place for place in places if place.dim]
    for dim, place in enumerate(places):
        if not place.is_whole(made.meta["val"].shape[dim]):
            made = write(_aten.slice.Tensor, made, dim, place.start, place.start + place.count)
    order = sorted(range(len(places)), key=lambda d: places[d].dim)
    if order != list(range(len(places))):
        made = write(_aten.permute.default, made, order)
    for d in free:
        made = write(_aten.unsqueeze.default, made, d + len(result))
    if not all(_is_one(result[d]) for d in free):
        made = write(_aten.expand.default, made, list(result))
    return made


def _gradient(write: _Writer, node: Node, places: Sequence[Place]) -> Node | None:
    values, shape = node.args[2], node.meta["val"].shape
    given = values.meta["val"].shape  # type: ignore[union-attr]
    dims = [place.dim for place in places if place.dim]
    if any(-d > len(given) for d in dims) or not all(
        statically_known_true(given[p.dim] == p.count) for p in places if p.dim
    ):
        return None
    made: Node = values  # type: ignore[assignment]
    free = [d for d in range(-len(given), 0) if d not in dims]
    if free:
        made = write(_aten.sum.dim_IntList, made, free)
    order = sorted(dims)
    if order != dims:
        made = write(_aten.permute.default, made, [order.index(d) for d in dims])
    for dim, place in enumerate(places):
        if not place.dim:
            made = write(_aten.unsqueeze.default, made, dim)
    rests = [
        (0, 0) if p.is_whole(size) else (p.start, size - p.start - p.count)
        for p, size in zip(places, shape, strict=True)
    ]
    if not all(isinstance(n, int) for pair in rests for n in pair):
        return None
    if any(any(pair) for pair in rests):
        made = write(_aten.constant_pad_nd.default, made, [n for p in reversed(rests) for n in p])
    return made
