# SPDX-License-Identifier: Apache-2.0
"""What a step's program must not put off or do ahead, though its values would allow it.

XLA orders a program by what depends on what. Two orders that a script asks for are none of that:
what the backward pass computes again comes late, and the gradients of a micro-batch are summed
before the next forward pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from torch.utils._pytree import tree_leaves

from torchtpu_core.plan import network_calls
from torchtpu_core.plan.calls import Call, Place
from torchtpu_core.plan.records import Phase


def places(tree: Any) -> list[Place]:
    """The places in the arguments or results of an operator."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Place)]


def mutated(call: Call) -> list[Place]:
    """The places that an operator writes to, by its schema."""
    if network_calls.is_collective(call):
        return network_calls.ends(call)[1]
    found: list[Place] = []
    for position, argument in enumerate(call.func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = call.args[position] if position < len(call.args) else None
            found += places(call.kwargs.get(argument.name, given))
    return found


def recomputes(call: Call | None) -> bool:
    """Whether the backward pass computes an operator of the forward pass again."""
    return call is not None and call.phase is Phase.RECOMPUTE


def recomputation_reads(calls: Sequence[Call], start: int) -> tuple[list[int], list[int]]:
    """Storages that a recomputation reads, and what is known before, at `start`, it may begin."""
    again = itertools.takewhile(recomputes, calls[start:])
    last = calls[max(0, start - 1)]
    return _read(again), [place.storage for place in (*places(last.out), *mutated(last))]


def begins_again(before: Call | None, call: Call) -> bool:
    """Whether a forward pass starts with an operator after another's backward pass."""
    return before is not None and before.phase is Phase.BACKWARD and call.phase is Phase.FORWARD


def sums_first(calls: Sequence[Call], start: int, results: Iterable[Place]) -> list[int]:
    """Storages that are known together where the forward pass of a micro-batch starts.

    Those are the gradients until then and what the forward pass reads. XLA would keep the
    activations of all micro-batches, and make and sum the gradients at the end. Fused Eager ends a
    program there (`csrc/rounds.h`).
    """
    rest = calls[start:]
    if not any(call.phase is Phase.BACKWARD for call in rest):
        return []
    ahead = itertools.takewhile(lambda call: call.phase is Phase.FORWARD, rest)
    done = [call for call in calls[:start] if call.phase is Phase.BACKWARD]
    made = [place.storage for call in done for place in (*places(call.out), *mutated(call))]
    needed = {*_read(rest), *(place.storage for place in results)}
    return list(dict.fromkeys([*(one for one in made if one in needed), *_read(ahead)]))


def read_by(calls: Iterable[Call]) -> set[int]:
    """Storages that operators read."""
    return set(_read(calls))


def _read(calls: Iterable[Call]) -> list[int]:
    found = (place.storage for call in calls for place in places((call.args, call.kwargs)))
    return list(dict.fromkeys(found))
