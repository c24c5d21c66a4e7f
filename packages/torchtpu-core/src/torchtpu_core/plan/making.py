# SPDX-License-Identifier: Apache-2.0
"""Makes a plan of what was recorded: of one rank for all, or of one for each role."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torchtpu_core.hardware.chip import Chip
from torchtpu_core.ici.faults import NO_FAULTS, Faults
from torchtpu_core.ici.slices import Slice
from torchtpu_core.plan import uneven
from torchtpu_core.plan.fusion import fuse
from torchtpu_core.plan.join import Joined
from torchtpu_core.plan.links import traffic_of
from torchtpu_core.plan.memory import memory_of
from torchtpu_core.plan.pipeline_advice import advise_pipeline, is_pipeline
from torchtpu_core.plan.placed import Schedule
from torchtpu_core.plan.records import Recording, Work
from torchtpu_core.plan.result import Plan, Role
from torchtpu_core.plan.schedule import Pricer, placing, schedule
from torchtpu_core.plan.vmem import LONGEST, NO_VMEM, Vmem
from torchtpu_core.simulator import calibration as cal


def make_plan(
    recordings: Recording | Sequence[Recording],
    where: Slice,
    slices: int,
    f32_precision: str,
    faults: Faults = NO_FAULTS,
) -> Plan:
    """Prices what was recorded on a slice, or on several, with what is wrong with them.

    Of several roles the plan is that of the slowest, in whose step all others wait for it or it
    for them; its advice is priced as if it had to wait for nobody.
    """
    several = [recordings] if isinstance(recordings, Recording) else list(recordings)
    pricer = Pricer(where, slices, f32_precision, faults)
    uneven.complete(several)
    plans = [_alone(one, where, slices, pricer, faults) for one in several]
    if len(plans) == 1:
        plans[0].advice = plans[0].advised(plans[0].schedule, pricer)
        _add_traffic(plans[0], pricer)
        _note_lonely_ranks(plans[0])
        return plans[0]
    role_of = [0] * several[0].world_size
    for number, one in enumerate(several):
        for rank in one.ranks:
            role_of[rank] = number
    joined = Joined(role_of)
    schedules = joined.run([placing(p.ops, p.fusion, pricer) for p in plans])
    slowest = max(range(len(plans)), key=lambda number: schedules[number].step_s)
    step_s = schedules[slowest].step_s
    alone = [plan.schedule for plan in plans]
    if is_pipeline(plans):
        plans[slowest].advice = advise_pipeline(plans, alone, step_s, pricer)
    else:
        plans[slowest].advice = plans[slowest].advised(alone[slowest], pricer)
    roles = []
    for plan, placed in zip(plans, schedules, strict=True):
        roles.append(Role(plan.recording.ranks, plan, placed.step_s))
        _wait_for(placed, step_s)
        plan.schedule = placed
    main = plans[slowest]
    main.roles = roles
    _add_traffic(main, pricer)
    if joined.unmatched:
        main.recording.notes.append(
            f"{joined.unmatched} times a rank uses what no recorded rank sends, or joins a "
            "collective that no recorded rank of it runs: nobody was waited for"
        )
    return main


def _alone(recording: Recording, where: Slice, slices: int, pricer: Pricer, faults: Faults) -> Plan:
    start, end = recording.step()
    ops = recording.ops[start:end]
    keeps_gelus = where.chip.name in cal.CHIPS_THAT_KEEP_GELUS
    fusion = fuse(ops, recording.blocks, start, keeps_gelus=keeps_gelus)
    placed = schedule(ops, fusion, pricer)
    limit = where.chip.hbm_device_bytes
    memory = memory_of(
        *(recording.ops, recording.blocks, (start, end), limit),
        *(_vmem(where, placed, end - start), _table_bytes(where)),
        keeps_gelus=keeps_gelus,
    )
    fusion = fusion.staying(ops, recording.blocks, memory.resident, memory.scores)
    placed = schedule(ops, fusion, pricer)
    return Plan(recording, where, slices, ops, fusion, placed, memory, faults=faults)


def _vmem(where: Slice, placed: Schedule, count: int) -> Vmem:
    """Room in VMEM of one device in which values can stay between operators.

    How long they wait is as XLA estimates it, which is by flops at the full rate and by bytes.
    """
    chip = where.chip
    size, room = _fast_memory(chip)
    if room <= 0:
        return NO_VMEM
    devices = chip.devices_per_chip or 1
    hbm = chip.figure("hbm_bytes_per_s") / devices
    peak = chip.figure("peak_bf16_flops_per_s") / devices
    seconds = [0.0] * (count + 1)
    for one in placed.placed:
        seconds[one.index + 1] += max(one.hbm_bytes / hbm, one.flops / peak)
    return Vmem(room, list(itertools.accumulate(seconds)), LONGEST * size / hbm)


def _fast_memory(chip: Chip) -> tuple[int, int]:
    """Bytes of one device's memory beside HBM that XLA places values in, and the room for them.

    On v4 that is the common memory of both cores. Elsewhere it is VMEM, less what the blocks of one
    operation take; of two cores that are one device each holds its half of a value, but for v5p
    libtpu placed values of 39 MiB there, and none of 64 or 75: as many as fit that of one core.
    """
    common = chip.cmem_bytes_per_chip.value if chip.cmem_bytes_per_chip is not None else 0
    if common or chip.vmem_bytes_per_core is None:
        return common, common
    size = chip.vmem_bytes_per_core.value
    scoped = cal.V6E_SCOPED_VMEM_BYTES if chip.name == "v6e" else cal.SCOPED_VMEM_BYTES
    cores = (chip.cores_per_chip or 1) // (chip.devices_per_chip or 1)
    return cores * size, size - scoped.value


def _table_bytes(where: Slice) -> int:
    """Bytes of one of the program's tables of addresses."""
    return cal.TABLE_BYTES.value if where.chip.name in cal.CHIPS_WITH_TABLES else 0


def _note_lonely_ranks(plan: Plan) -> None:
    """Says so if ranks train and exchange nothing, which nothing else in a plan shows."""
    recording = plan.recording
    trains = bool(recording.step_ends) and not recording.called
    together = trains and recording.world_size > 1
    if together and all(op.work is not Work.COLLECTIVE for op in plan.ops):
        recording.notes.append(
            f"nothing in the step goes between the {recording.world_size} ranks: each trains a "
            "model of its own; DistributedDataParallel or fully_shard would join them"
        )


def _wait_for(placed: Schedule, step_s: float) -> None:
    """A rank that is through with its step waits for the slowest."""
    waits = step_s - placed.step_s
    if waits > 0:
        placed.critical["waiting for the slowest rank"] = waits
        placed.critical = dict(sorted(placed.critical.items(), key=lambda item: -item[1]))
    placed.step_s = step_s


def _add_traffic(plan: Plan, pricer: Pricer) -> None:
    """Adds what every link carries, by all roles together."""
    placed = plan.schedule
    if pricer.network is None or not placed.step_s:
        return
    if not plan.roles:
        placed.traffic = traffic_of(placed.sent, placed.dcn_bytes, placed.step_s, pricer.network)
        return
    sent = [(role.plan.schedule.sent, role.ranks) for role in plan.roles]
    dcn_bytes = max(role.plan.schedule.dcn_bytes for role in plan.roles)
    placed.traffic = traffic_of(sent, dcn_bytes, placed.step_s, pricer.network)
