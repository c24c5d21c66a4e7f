# SPDX-License-Identifier: Apache-2.0
"""Which ranks of a script do the same: those that get the same answers about their rank.

While one rank is recorded, the rank that its script sees is an integer that remembers what
every other rank would see in its place. Each comparison is answered for all of them at once;
ranks whose answers agree take the same branches, and one of them stands for all. Places in a
pipeline count as answers.

Not seen: a rank that is used as an index, or printed. Of those that are read from the
environment: `environment_ranks`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
from torch import distributed as dist
from torch.distributed import _functional_collectives
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining.stage import _PipelineStageBase

from torchtpu_core.errors import PlanError
from torchtpu_core.ici.fabric import Ints
from torchtpu_core.plan.collectives import all_groups
from torchtpu_core.plan.user_lines import LIBRARIES


class Branches:
    """Answers that depend on the rank.

    Attributes:
        world: how many ranks there are.
        answers: what each rank is told, by question.
        followed: what became of a rank in the environment: read, compared as text, a number.
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self.answers: dict[bytes, Ints] = {}
        self.followed: set[str] = set()

    def note(self, answers: Any) -> None:
        """Remembers what each rank is told, `[world]`."""
        row = np.asarray(answers, dtype=np.int64)
        self.answers.setdefault(row.tobytes(), row)

    def add(self, rows: Sequence[Ints]) -> None:
        """Takes over what another rank's recording was told."""
        for row in rows:
            self.note(row)

    def classes(self) -> list[tuple[int, ...]]:
        """Ranks that got the same answers, each class by its lowest.

        >>> branches = Branches(4)
        >>> branches.note([True, False, False, False])
        >>> branches.classes()
        [(0,), (1, 2, 3)]
        """
        rows = [*self.answers.values(), np.zeros(self.world, dtype=np.int64)]
        classes: dict[bytes, list[int]] = {}
        for rank, told in enumerate(np.stack(rows, axis=1)):
            classes.setdefault(told.tobytes(), []).append(rank)
        return [tuple(ranks) for ranks in classes.values()]


class Rank(int):
    """A rank that knows what the others have in its place."""

    everyone: Ints
    branches: Branches

    @classmethod
    def of(cls, mine: int, everyone: Ints, branches: Branches) -> Rank:
        """The rank `mine` of those whose ranks are `everyone`, `[world]`."""
        made = cls(mine)
        made.everyone, made.branches = everyone, branches
        return made

    def __bool__(self) -> bool:
        if by_user():
            self.branches.note(self.everyone != 0)
        return int(self) != 0

    __hash__ = int.__hash__


def _comparison(name: str) -> Callable[[Rank, Any], Any]:
    mine = getattr(int, name)

    def compare(self: Rank, other: Any) -> Any:
        if isinstance(other, int) and by_user():
            others = other.everyone if isinstance(other, Rank) else int(other)
            self.branches.note(getattr(self.everyone, name)(others))
        return mine(self, other)

    return compare


def _arithmetic(name: str) -> Callable[[Rank, Any], Any]:
    mine = getattr(int, name)

    def calculate(self: Rank, other: Any) -> Any:
        result = mine(self, other)
        if type(result) is not int:
            return result
        others = other.everyone if isinstance(other, Rank) else int(other)
        everyone = getattr(self.everyone, name)(others)
        return Rank.of(result, np.asarray(everyone), self.branches)

    return calculate


for _name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"):
    setattr(Rank, _name, _comparison(_name))
for _name in ("add", "sub", "mul", "mod", "floordiv"):
    setattr(Rank, f"__{_name}__", _arithmetic(f"__{_name}__"))
    setattr(Rank, f"__r{_name}__", _arithmetic(f"__r{_name}__"))


def by_user(past: frozenset[str] = frozenset()) -> bool:
    """Whether the caller's caller is the user's code; files of `past` call for theirs."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in past:
        frame = frame.f_back
    return frame is not None and not frame.f_code.co_filename.startswith(LIBRARIES)


def watch(stack: contextlib.ExitStack, branches: Branches) -> None:
    """Has the script's ranks watched until the stack is left."""
    get_rank, init = dist.get_rank, _PipelineStageBase.__init__
    local_rank, node_rank = DeviceMesh.get_local_rank, dist.get_node_local_rank

    def rank_of(group: Any = None) -> int:
        mine = get_rank(group)
        return _watched(mine, group, branches) if by_user() else mine

    def local_rank_of(self: Any, mesh_dim: Any = None) -> int:
        mine = local_rank(self, mesh_dim)
        return _watched(mine, self.get_group(mesh_dim), branches) if by_user() else mine

    def node_rank_of(fallback_rank: int | None = None) -> int:
        mine = node_rank(fallback_rank)
        everyone = np.arange(branches.world) % int(os.environ["LOCAL_WORLD_SIZE"])
        return Rank.of(mine, everyone, branches) if by_user() else mine

    def stage(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        places = _places(self.group, branches.world)
        if places is not None:
            branches.note(places)

    for module, name in _WITH_SIZES:
        noting = _noting(getattr(module, name), branches)
        stack.enter_context(mock.patch.object(module, name, noting))
    stack.enter_context(mock.patch.object(dist, "get_rank", rank_of))
    stack.enter_context(mock.patch.object(dist, "get_node_local_rank", node_rank_of))
    stack.enter_context(mock.patch.object(DeviceMesh, "get_local_rank", local_rank_of))
    stack.enter_context(mock.patch.object(_PipelineStageBase, "__init__", stage))


#: Calls whose lists of sizes are told, if they come from a rank.
_WITH_SIZES = (
    (dist, "all_to_all_single"),
    (_functional_collectives, "all_to_all_single"),
    (_functional_collectives, "all_to_all_single_autograd"),
)


def _noting(call: Callable[..., Any], branches: Branches) -> Callable[..., Any]:
    """A call that notes the ranks in its lists, which become plain numbers in it."""

    @functools.wraps(call)
    def noted(*args: Any, **kwargs: Any) -> Any:
        for argument in (*args, *kwargs.values()):
            for item in argument if isinstance(argument, (list, tuple)) else ():
                if isinstance(item, Rank):
                    branches.note(item.everyone)
        return call(*args, **kwargs)

    return noted


def _watched(mine: int, group: Any, branches: Branches) -> int:
    places = _places(group, branches.world)
    return mine if places is None or mine < 0 else Rank.of(mine, places, branches)


def _places(group: Any, world: int) -> Ints | None:
    """Each rank's place in the groups that are alike to one, `[world]`; None if not known."""
    ranks = range(world) if group is None else dist.get_process_group_ranks(group)
    places = np.zeros(world, dtype=np.int64)
    try:
        for one in all_groups(tuple(ranks), world):
            places[one] = np.arange(len(one))
    except PlanError:
        return None
    return places
