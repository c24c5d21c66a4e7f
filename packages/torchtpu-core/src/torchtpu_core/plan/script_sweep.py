# SPDX-License-Identifier: Apache-2.0
"""A script planned with several values of its own options, each in a process of its own.

The front holds the choices that fit and that no other beats both in tokens or samples per second
(step time, where neither is seen) and in memory.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtpu_core.child_processes import Child, fork
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
    combinations = options_of(sweeps)
    with tempfile.TemporaryDirectory(prefix="torchtpu-sweep-") as name:
        folder = Path(name)
        lines = [[*command, *options] for options in combinations]
        (folder / "lines").write_text(json.dumps(lines), encoding="utf-8")
        code = "import sys; from torchtpu_core.plan.script_sweep import plans; plans(sys.argv[1])"
        with (
            (folder / "errors").open("wb") as errors,
            Child(code, [name], stdout=subprocess.PIPE, stderr=errors) as child,
        ):
            assert child.stdout is not None
            for index, options in enumerate(combinations):
                child.stdout.readline()  # one is over, or all are
                yield _tried(folder, index, options)


def _tried(folder: Path, index: int, options: tuple[str, ...]) -> Tried:
    """What came of a combination."""
    out = folder / f"{index}.json"
    if out.exists():  # one that does not fit has its figures, and an exit code
        return Tried(options=options, plan=json.loads(out.read_text(encoding="utf-8")))
    said = [folder / f"{index}.errors", folder / f"{index}.output", folder / "errors"]
    texts = [path.read_text(encoding="utf-8", errors="replace") for path in said if path.exists()]
    nothing = "its process ended without a word; is there enough memory?"
    lines = next(filter(None, map(str.strip, texts)), nothing).splitlines()
    # An argument parser says what is wrong a line before it ends the script.
    ended_by_itself = "sys.exit" in lines[-1] and len(lines) > 1
    return Tried(options=options, plan={}, failure=lines[-2] if ended_by_itself else lines[-1])


def plans(name: str) -> None:
    """Plans every combination in a fork of this process, which has imported all that plans need."""
    from torchtpu_core.cli.app import main
    from torchtpu_core.plan import making, roles  # noqa: F401

    folder = Path(name)
    for index, line in enumerate(json.loads((folder / "lines").read_text(encoding="utf-8"))):
        sys.argv = ["torchtpu", "plan", "--json", str(folder / f"{index}.json"), *line]
        paths = {"output": folder / f"{index}.output", "errors": folder / f"{index}.errors"}
        os.waitpid(fork(main, **paths), 0)
        print(index, flush=True)


def front(tried: Sequence[Tried]) -> list[Tried]:
    """The choices that fit and that none other beats both in time and in memory."""
    best: list[Tried] = []
    for choice in sorted((t for t in tried if t.fits), key=lambda t: t.cost):
        if not best or choice.cost[1] < best[-1].cost[1]:
            best.append(choice)
    return best


def without_effect(tried: Sequence[Tried]) -> list[str]:
    """Options that change no figure, whatever the others are: the script may not read them."""
    planned = [choice for choice in tried if choice.plan]
    names = {option.partition("=")[0]: None for choice in planned for option in choice.options}
    return [name for name in names if not _matters(name, planned)]


def _matters(name: str, planned: Sequence[Tried]) -> bool:
    """Whether choices that differ in one option alone differ in a figure, or there are none."""
    alike = defaultdict(list)
    for choice in planned:
        others = tuple(o for o in choice.options if o.partition("=")[0] != name)
        alike[others].append((choice.cost, choice.plan["hbm"]))
    several = [figures for figures in alike.values() if len(figures) > 1]
    return not several or any(one != figures[0] for figures in several for one in figures)
