# SPDX-License-Identifier: Apache-2.0
"""`torchtpu run`: a script on simulated chips of this machine, one process per chip.

It only chooses the simulated slice and calls PyTorch's own launcher, so the environment
of a rank, restarts and error reports are torchrun's. A slice of several hosts gets one
launcher per host: `LOCAL_RANK` counts the chips of a host, as on the real slice. Launchers end
with this process, and ranks with their launcher (`bound`).
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchtpu_core import huge_pages
from torchtpu_core.errors import TargetError
from torchtpu_core.targets import Target, TargetKind, parse_target

from torchtpu_distributed import bound

#: The slices of v5e that are tried, smallest first.
_SLICES = ("1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_LAUNCHER = "torch.distributed.run"
#: How long the other hosts may take to end when one has failed.
_PATIENCE_S = 15.0
#: How long a launcher may take to end its ranks: torchrun gives them 30 seconds.
_LAUNCHER_S = 45.0
#: What ends a launcher, and with it its ranks, where the kernel sees to that.
_AT_ONCE = signal.SIGKILL if bound.IS_POSSIBLE else signal.SIGTERM
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who runs where.

    Attributes:
        target: name of the simulated slice.
        hosts: number of simulated hosts, each with a launcher.
        per_host: ranks of a host.
    """

    target: str
    hosts: int
    per_host: int


def plan(chips: int, target: str | None) -> Plan:
    """How many ranks on how many hosts of which slice.

    Args:
        chips: number of ranks.
        target: a slice, or None for the smallest v5e slice that has enough chips.

    Raises:
        TargetError: the slice is not simulated, or has not that many chips.
    """
    if chips < 1:
        raise TargetError(f"{chips} chips cannot run anything: use --chips 1 or more.")
    chosen = parse_target(target) if target else _smallest(chips)
    if chosen.kind is TargetKind.CPU:
        return Plan(target=chosen.name, hosts=chips, per_host=1)
    slice_ = chosen.slice_
    if slice_ is None:
        raise TargetError("torchtpu run simulates chips; on a real TPU use torchrun.")
    if chips > slice_.devices:
        raise TargetError(
            f"{chosen.name} has {slice_.devices} devices, which is less than {chips} ranks: use a "
            "larger slice, or leave --target out."
        )
    per_host = min(chips, slice_.devices_per_host)
    if chips % per_host:
        raise TargetError(
            f"{chips} ranks do not fill hosts of {slice_.devices_per_host} devices of "
            f"{chosen.name}: use a multiple of {slice_.devices_per_host}."
        )
    return Plan(target=chosen.name, hosts=chips // per_host, per_host=per_host)


def _smallest(chips: int) -> Target:
    for shape in _SLICES:
        candidate = parse_target(f"v5e:{shape}")
        if candidate.slice_ is not None and candidate.slice_.devices >= chips:
            return candidate
    raise TargetError(
        f"no v5e slice has {chips} chips: name a larger slice of another generation, such as "
        "--target v5p:8x8x8."
    )


def commands(
    chosen: Plan, script: Sequence[str], *, restarts: int, module: bool
) -> list[list[str]]:
    """The launcher's command line for each host.

    Args:
        chosen: the plan.
        script: the script and its arguments.
        restarts: how often torchrun restarts all ranks after a failure.
        module: whether the script is the name of a module.
    """
    common = [sys.executable, "-m", _LAUNCHER, "--max-restarts", str(restarts)]
    common += ["--nproc-per-node", str(chosen.per_host)]
    rank = [sys.executable, "-u", *(["-m"] if module else []), *script]
    tail = ["--no-python", *bound.command(signal.SIGKILL, rank, script[0])]
    if chosen.hosts == 1:
        return [[*common, "--standalone", *tail]]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        endpoint = f"127.0.0.1:{probe.getsockname()[1]}"
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id"]
    shared = [*common, *meeting, secrets.token_hex(4), "--nnodes", str(chosen.hosts)]
    return [[*shared, "--local-addr", "127.0.0.1", *tail] for _ in range(chosen.hosts)]


def environment(chosen: Plan) -> Mapping[str, str]:
    """The environment of the launchers; malloc asks for huge pages where that is possible."""
    tunables = huge_pages.missing()
    added = {} if tunables is None else {huge_pages.VARIABLE: tunables}
    return {**os.environ, **added, "TORCH_TPU_TARGET": chosen.target}


def run(chosen: Plan, script: Sequence[str], *, restarts: int = 0, module: bool = False) -> int:
    """Run a script on all ranks; the exit code of the first launcher that failed, else 0.

    Ctrl-C and SIGTERM reach every rank, by way of its launcher; a second one ends all at once.
    """
    launchers: list[subprocess.Popen[bytes]] = []
    signals: list[int] = []

    def forward(number: int, _frame: object) -> None:
        signals.append(number)
        _send(launchers, number if len(signals) == 1 else _AT_ONCE)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for command in commands(chosen, script, restarts=restarts, module=module):
            whole = bound.command(signal.SIGTERM, command, _LAUNCHER, os.getpid())
            launchers.append(
                subprocess.Popen(whole, env=environment(chosen), start_new_session=True)
            )
        if signals:  # one that came between these lines
            _send(launchers, signals[0])
        return _wait(launchers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _send(launchers: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    for launcher in launchers:
        if launcher.poll() is None:
            launcher.send_signal(number)


def _wait(launchers: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all; when one fails, the others get a while, then a signal, then SIGKILL."""
    failed, deadline, final = 0, float("inf"), [signal.SIGTERM, _AT_ONCE]
    while any(launcher.poll() is None for launcher in launchers):
        codes = [launcher.poll() for launcher in launchers]
        if not failed and any(codes):
            failed = next(code for code in codes if code)
            deadline = time.monotonic() + _PATIENCE_S
        if final and time.monotonic() > deadline:
            deadline = time.monotonic() + _LAUNCHER_S
            _send(launchers, final.pop(0))
        time.sleep(_LOOK_S)
    return failed or next((code for launcher in launchers if (code := launcher.poll())), 0)
