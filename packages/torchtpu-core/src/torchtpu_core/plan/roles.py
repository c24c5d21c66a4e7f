# SPDX-License-Identifier: Apache-2.0
"""Records one rank for all that do the same, each in a process of its own.

Rank 0 is recorded first. If its script asks for its rank, or makes a pipeline stage, one rank
of each class is recorded; they may ask more, which splits classes further. Ranks that are
recorded alike are one role after all, as where rank 0 only prints.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from torchtpu_core.child_processes import Child, fork
from torchtpu_core.errors import PlanError, TorchTPUError
from torchtpu_core.ici.fabric import Ints
from torchtpu_core.ici.slices import Slice, parse_slice
from torchtpu_core.plan.exchange import FAILED, Alone, Mailbox, NeedsOthers
from torchtpu_core.plan.ranks import Branches
from torchtpu_core.plan.records import Recording
from torchtpu_core.plan.script_process import TICK_S
from torchtpu_core.plan.session import record
from torchtpu_core.runtime import tables

#: Roles that are recorded at most.
MOST_ROLES = 16
#: How often classes may split.
MOST_ROUNDS = 4

Classes = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Job:
    """What a process records."""

    script: str
    arguments: tuple[str, ...]
    target: str
    slices: int
    rank: int
    classes: Classes
    folder: str
    limit_s: float
    keep_calls: bool
    chosen: float


def record_roles(
    script: Path,
    arguments: Sequence[str],
    where: Slice,
    slices: int,
    ranks: Sequence[int] | None = None,
    *,
    keep_calls: bool = False,
    limit_s: float = 0.0,
    chosen: float = 1.0,
    say: Callable[[str], None] | None = None,
) -> list[Recording]:
    """One recording per role, each with the ranks that it stands for.

    Args:
        script: path of the user's script.
        arguments: its command line.
        where: one slice.
        slices: how many there are.
        ranks: ranks to record, each standing for those up to the next; found out if None.
        keep_calls: also keep each operator's arguments, to make programs of the steps.
        limit_s: seconds that each rank may run, 0 for any.
        chosen: the share of their elements that masks are taken to choose.
        say: is told now and then how far the first rank is, or how long all have taken.

    Raises:
        PlanError: the script failed, or its ranks have too many roles.
    """
    world = where.devices * slices
    how = (limit_s, keep_calls, chosen)
    job = _Job(str(script), tuple(arguments), where.name, slices, 0, [], "", *how)
    if ranks:
        return _alike(_recorded(job, _declared(ranks, world), say)[0])
    branches = Branches(world)
    try:
        first = record(
            *(script, arguments, where, slices),
            branches=branches,
            mailbox=Alone(),
            keep_calls=keep_calls,
            limit_s=limit_s,
            chosen=chosen,
            say=say,
        )
    except NeedsOthers:
        first = None
    classes = branches.classes()
    if len(classes) == 1:
        if first is None:
            raise PlanError(
                f"{script} waits for an object of another rank, but all ranks seem to do the "
                "same. Say which to record: --ranks 0,1."
            )
        first.ranks = classes[0]
        if branches.followed == {"read"}:
            first.notes.append(
                "a rank was read from the environment, and neither compared nor made a number by "
                "int(): if ranks differ by it, say which to record with --ranks"
            )
        return [first]
    for _ in range(MOST_ROUNDS):
        found, rows = _recorded(job, classes, say)
        branches.add(rows)
        if len(branches.classes()) == len(classes):
            break
        classes = branches.classes()
    return _alike(found)


def _declared(ranks: Sequence[int], world: int) -> Classes:
    chosen = sorted(set(ranks))
    if chosen[0] < 0 or chosen[-1] >= world:
        raise PlanError(f"ranks {chosen} are not all among the {world} ranks, 0 to {world - 1}.")
    ends = [*chosen[1:], world]
    classes = [tuple(range(start, end)) for start, end in zip(chosen, ends, strict=True)]
    classes[0] = (*classes[0], *range(chosen[0]))
    return classes


def _recorded(
    job: _Job, classes: Classes, say: Callable[[str], None] | None
) -> tuple[list[Recording], list[Ints]]:
    """The recordings of the first rank of each class, and what they were told."""
    if len(classes) > MOST_ROLES:
        raise PlanError(
            f"{job.script} asks for its rank in so many ways that its {sum(map(len, classes))} "
            f"ranks have {len(classes)} roles; at most {MOST_ROLES} are recorded. Choose some: "
            f"--ranks {','.join(str(ranks[0]) for ranks in classes[:4])}."
        )
    with tempfile.TemporaryDirectory(prefix="torchtpu-plan-") as name:
        folder = Path(name)
        jobs = [replace(job, rank=r[0], classes=classes, folder=name) for r in classes]
        (folder / "jobs").write_bytes(pickle.dumps((jobs, _imported())))
        code = "import sys; from torchtpu_core.plan.roles import children; children(sys.argv[1])"
        with (
            (folder / "error").open("wb") as errors,
            Child(code, [name], stderr=errors, env=os.environ) as child,
        ):
            _wait_for(child, job.script, len(jobs), folder, say)
        if child.returncode:
            raise PlanError(_first_failure(folder, classes))
        answers = [pickle.loads((folder / f"recorded-{r[0]}").read_bytes()) for r in classes]
    recordings = []
    for (recording, _), ranks in zip(answers, classes, strict=True):
        recording.ranks = ranks
        recordings.append(recording)
    return recordings, [row for _, rows in answers for row in rows]


def _wait_for(
    child: Any, script: str, count: int, folder: Path, say: Callable[[str], None] | None
) -> None:
    """Waits until all ranks are recorded, and says now and then how many are not."""
    start = time.monotonic()
    while True:
        try:
            child.wait(TICK_S)
            return
        except TimeoutExpired:
            if say is not None:
                left = count - len(list(folder.glob("recorded-*")))
                say(
                    f"{script}: {time.monotonic() - start:.0f} s, {left} of {count} ranks are "
                    "still being recorded"
                )


def _first_failure(folder: Path, classes: Classes) -> str:
    """What the rank said that failed first; others may have failed for want of it."""
    first = folder / FAILED
    ranks = [int(first.read_text())] if first.exists() else [ranks[0] for ranks in classes]
    for path in (*(folder / f"error-{rank}" for rank in ranks), folder / "error"):
        said = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
        if said:
            who = path.name.replace("error-", "rank ").replace("error", "the process of all ranks")
            return f"{who} failed while it ran without values:\n{said[-3000:]}"
    who = f"rank {ranks[0]}" if first.exists() else "a rank"
    return f"the process that records {who} ended without a word; is there enough memory?"


def _imported() -> list[str]:
    """PyTorch's public packages that the script imported when it ran as the first rank."""
    return [
        name
        for name, module in list(sys.modules.items())
        if name.startswith("torch.") and hasattr(module, "__path__") and "._" not in name
    ]


def children(folder: str) -> None:
    """Records all ranks, each in a fork of this process; ends with 1 if one failed."""
    jobs: list[_Job]
    jobs, modules = pickle.loads((Path(folder) / "jobs").read_bytes())
    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    tables.without_a_device()
    ranks = {
        fork(
            functools.partial(_record, job),
            output=None if job.rank == 0 else Path(os.devnull),
            errors=Path(folder) / f"error-{job.rank}",
        ): job.rank
        for job in jobs
    }
    failed = False
    for _ in jobs:
        ended, status = os.wait()
        failed |= bool(status)
        if status:  # it may have been killed before it could say so
            _tell_of_failure(Path(folder), ranks[ended])
    sys.exit(failed)


def _tell_of_failure(folder: Path, rank: int) -> None:
    """Ends the waiting of the other ranks; the first failure is kept."""
    with contextlib.suppress(FileExistsError), (folder / FAILED).open("x") as file:
        file.write(str(rank))


def _record(job: _Job) -> None:
    """Records one rank."""
    folder, where = Path(job.folder), parse_slice(job.target)
    stands_for = {rank: ranks[0] for ranks in job.classes for rank in ranks}
    branches = Branches(where.devices * job.slices)
    try:
        recording = record(
            Path(job.script),
            job.arguments,
            where,
            job.slices,
            rank=job.rank,
            branches=branches,
            mailbox=Mailbox(folder, job.rank, stands_for.__getitem__),
            keep_calls=job.keep_calls,
            limit_s=job.limit_s,
            chosen=job.chosen,
        )
    except BaseException as error:
        _tell_of_failure(folder, job.rank)
        if not isinstance(error, TorchTPUError):
            raise
        sys.exit(str(error))
    start, end = recording.step()
    recording.calls = [call for call in recording.calls if start <= call.index < end]
    made = recording, list(branches.answers.values())
    unfinished = folder / f"unfinished-{job.rank}"
    unfinished.write_bytes(pickle.dumps(made))
    unfinished.rename(folder / f"recorded-{job.rank}")


def _alike(recordings: list[Recording]) -> list[Recording]:
    """The recordings, those of ranks that do the same on the device merged."""
    kept: dict[Any, Recording] = {}
    for recording in recordings:
        start, end = recording.step()
        does = tuple(
            (
                *(op.name, op.read_bytes, op.write_bytes, op.products),
                *(op.collective, len(op.group), op.sent, op.received),
            )
            for op in recording.ops[start:end]
        )
        held = tuple(sorted(block.size_bytes for block in recording.blocks.values()))
        sends = tuple(op.peer for op in recording.ops[start:end])
        known = kept.setdefault((does, held, sends), recording)
        if known is not recording:
            known.ranks = tuple(sorted((*known.ranks, *recording.ranks)))
    return list(kept.values())
