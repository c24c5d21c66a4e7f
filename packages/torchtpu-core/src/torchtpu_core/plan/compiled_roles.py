# SPDX-License-Identifier: Apache-2.0
"""Plans of ranks with different roles, from a program of each that was compiled by itself.

A compiled program has neither the messages nor the waits of a pipeline: what a rank receives is
an operand, what it sends a result. So the simulator's order of operators, messages and meetings
is kept, at the pace of the compiled program: the core's time of each operator is stretched
until the step without messages takes as long as the compiled one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch

from torchtpu_core.plan.join import Joined
from torchtpu_core.plan.links import Sent, traffic_of
from torchtpu_core.plan.placed import Schedule
from torchtpu_core.plan.result import ROLE_WAITS, Plan, Role
from torchtpu_core.plan.schedule import Pricer, placing, schedule

#: Halvings of the interval in which the pace lies.
HALVINGS = 24
MESSAGE = "collective_permute"


def of_roles(plan: Plan, compiled: Callable[[Plan], Plan]) -> Plan:
    """The plan of the slowest role, with those of all.

    Args:
        plan: the simulator's.
        compiled: makes the plan of a role's program.
    """
    pricer = Pricer(plan.where, plan.slices, torch.get_float32_matmul_precision(), plan.faults)
    parts = [compiled(replace(role.plan, roles=[])) for role in plan.roles]
    paces = [pace_of(part, part.step_s, pricer) for part in parts]
    role_of = [0] * plan.recording.world_size
    for number, role in enumerate(plan.roles):
        for rank in role.ranks:
            role_of[rank] = number
    together = Joined(role_of).run(
        [placing(p.ops, p.fusion, pricer, pace) for p, pace in zip(parts, paces, strict=True)]
    )
    step_s = max(placed.step_s for placed in together)
    roles = []
    for role, part, placed in zip(plan.roles, parts, together, strict=True):
        end_s = placed.step_s
        _wait(part.schedule, placed, step_s)
        roles.append(Role(role.ranks, part, end_s))
    main = max(roles, key=lambda role: role.end_s).plan
    main.roles = roles
    if pricer.network is not None:
        sent = [
            (role.plan.schedule.sent + _messages(placed), role.ranks)
            for role, placed in zip(roles, together, strict=True)
        ]
        dcn_bytes = max(placed.dcn_bytes for placed in together)
        main.schedule.traffic = traffic_of(sent, dcn_bytes, step_s, pricer.network)
    main.recording.notes.append(
        f"XLA's TPU compiler made {len(roles)} programs, one for each role; messages between "
        "roles and the waits for them are the simulator's, at the programs' pace"
    )
    return main


def pace_of(plan: Plan, step_s: float, pricer: Pricer) -> float:
    """How many times as long the core takes in a step of `step_s` without messages."""
    ops = [replace(op, group=()) if op.peer >= 0 else op for op in plan.ops]

    def seconds(pace: float) -> float:
        return schedule(ops, plan.fusion, pricer, pace).step_s

    low, high = 0.0, 1.0
    while seconds(high) < step_s:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if seconds(middle) < step_s else (low, middle)
    return high


def _wait(made: Schedule, placed: Schedule, step_s: float) -> None:
    """A compiled schedule gets the waits for other ranks."""
    waits = {name: spent for name, spent in placed.critical.items() if name in ROLE_WAITS}
    if step_s > placed.step_s:
        waits[ROLE_WAITS[1]] = step_s - placed.step_s
    made.critical = dict(sorted({**made.critical, **waits}.items(), key=lambda item: -item[1]))
    made.step_s = step_s


def _messages(placed: Schedule) -> Counter[Sent]:
    """The messages of a step, which a compiled program does not have."""
    return Counter({key: times for key, times in placed.sent.items() if key[0] == MESSAGE})
