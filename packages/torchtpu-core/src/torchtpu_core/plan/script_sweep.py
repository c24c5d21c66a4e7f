# SPDX-License-Identifier: Apache-2.0
"""A script planned with several values of its own options, each in a process of its own.

The front holds the choices that fit and that no other beats both in tokens or samples per second
(step time, where neither is seen) and in memory.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtpu_core.child_processes import Child
from torchtpu_core.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One choice of options.

    Attributes:
        options: what was added to the script's command line.
        plan: the plan's figures, empty if it failed.
        failure: the last of what it said, if it failed.
    """

    options: tuple[str, ...]
    plan: dict[str, Any]
    failure: str = ""

    @property
    def name(self) -> str:
        """Its options as on a command line."""
        return " ".join(self.options) or "(none of them)"

    @property
    def rate(self) -> tuple[float, str]:
        """What a second trains on, and in what it is counted; zero where nothing is."""
        tokens = self.plan["tokens_per_s"]
        return (tokens, "tokens/s") if tokens else (self.plan["samples_per_s"], "samples/s")

    @property
    def cost(self) -> tuple[float, float]:
        """Seconds per token or sample, else per step, and bytes at the peak; less is better."""
        rate, _ = self.rate
        seconds = 1 / rate if rate else self.plan["step_s"]
        return seconds, self.plan["hbm"]["peak_bytes"]

    @property
    def fits(self) -> bool:
        """Whether it ran and is within the device's HBM."""
        return bool(self.plan) and bool(self.plan["hbm"]["fits"])


def options_of(sweeps: Sequence[str]) -> list[tuple[str, ...]]:
    """All combinations of ``--name=a,b,c``, and of ``--name``: without this flag and with it.

    Raises:
        PlanError: not of this form.

    >>> options_of(["--tp=1,2", "--ac"])
    [('--tp=1',), ('--tp=1', '--ac'), ('--tp=2',), ('--tp=2', '--ac')]
    """
    axes = []
    for text in sweeps:
        name, equals, values = text.partition("=")
        if not name.startswith("-") or (equals and not values):
            raise PlanError(
                f"--sweep takes an option of the script as --name=a,b, or a flag as --name, not "
                f"{text!r}."
            )
        choices = [f"{name}={value}" for value in values.split(",")] if equals else ["", name]
        axes.append(choices)
    return [tuple(filter(None, one)) for one in itertools.product(*axes)]


def try_all(command: Sequence[str], sweeps: Sequence[str]) -> Iterator[Tried]:
    """Plans a script with every combination, one after another.

    Args:
        command: ``torchtpu plan`` with its options, up to the script's own arguments.
        sweeps: the options to vary.
    """
    for options in options_of(sweeps):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "plan.json"
            program = "from torchtpu_core.cli.app import main; main()"
            arguments = [*_with_json(command, out), *options]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
            with Child(program, arguments, **pipes) as child:
                stdout, stderr = child.communicate()
            if not out.exists():  # one that does not fit has its figures, and an exit code
                lines = (stderr or stdout).strip().splitlines() or ["no message"]
                # An argument parser says what is wrong a line before it ends the script.
                ended_by_itself = "sys.exit" in lines[-1] and len(lines) > 1
                said = lines[-2] if ended_by_itself else lines[-1]
                yield Tried(options=options, plan={}, failure=said)
                continue
            yield Tried(options=options, plan=json.loads(out.read_text(encoding="utf-8")))


def _with_json(command: Sequence[str], out: Path) -> list[str]:
    """The command with its figures written to a file."""
    return ["plan", "--json", str(out), *command]


def front(tried: Sequence[Tried]) -> list[Tried]:
    """The choices that fit and that none other beats both in time and in memory."""
    best: list[Tried] = []
    for choice in sorted((t for t in tried if t.fits), key=lambda t: t.cost):
        if not best or choice.cost[1] < best[-1].cost[1]:
            best.append(choice)
    return best
