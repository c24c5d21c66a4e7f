# SPDX-License-Identifier: Apache-2.0
"""Runs a schedule on values, to see that it does what the collective says.

Every unit of every lane is one number per position. A round reads before any of it writes,
as chips that send at the same time do. A unit that a position does not have is NaN, so that
a schedule that sends what it has not received is found out.
"""

from __future__ import annotations

import numpy as np

from torchtpu_core.ici.fabric import Floats
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.schedules import Lane, Schedule


def execute(schedule: Schedule, contribution: Floats) -> list[Floats]:
    """The values each position ends with.

    Args:
        schedule: what to run.
        contribution: `[P]`, a number for each position. An all-reduce adds them in every
            unit; an all-gather starts with the position's own in its block; a broadcast
            spreads that of position 0.

    Returns:
        For each lane `[P, units]`: NaN where a position has nothing.
    """
    return [_run(schedule, lane, contribution) for lane in schedule.lanes]


def _run(schedule: Schedule, lane: Lane, contribution: Floats) -> Floats:
    values = _initial(schedule, lane, contribution)
    for moves in lane.rounds:
        sent = []
        for move in moves:
            units = move.start[:, None] + np.arange(move.units)
            sent.append((move, units, values[move.sources[:, None], units].copy()))
            if move.adds:
                # A partial sum that was passed on is no longer the sender's.
                values[move.sources[:, None], units] = np.nan
        for move, units, data in sent:
            place = move.targets[:, None], units
            values[place] = values[place] + data if move.adds else data
    return values


def _initial(schedule: Schedule, lane: Lane, contribution: Floats) -> Floats:
    shape = (schedule.positions, lane.units)
    starts_scattered = schedule.kind is CollectiveKind.ALL_GATHER or schedule.algorithm.single_phase
    if starts_scattered:
        values = np.full(shape, np.nan)
        units = lane.owner[:, None] + np.arange(lane.block)
        values[np.arange(schedule.positions)[:, None], units] = contribution[:, None]
        return values
    if schedule.kind is CollectiveKind.BROADCAST:
        others = np.nan if schedule.algorithm.pipelined else 0.0
        values = np.full(shape, others)
        values[0] = contribution[0]
        return values
    return np.repeat(np.asarray(contribution, dtype=np.float64)[:, None], lane.units, axis=1)
