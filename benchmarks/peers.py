# SPDX-License-Identifier: Apache-2.0
"""Training steps beside those of others on the same CPU: Inductor, torchax, torch_xla, jax.jit.

    python benchmarks/peers.py [gpt resnet dlrm criteo] [--rounds 7] [--peers DIR] [--save]

Each candidate is a process of its own (`_peer_child.py`), since torch_xla needs another torch. They
take turns on one core; ratios are taken turn by turn, to the step that is written by hand in JAX.
CPU time of the whole process is compared, since the machine is shared. `DIR` is an environment
with `requirements/peers.txt`; `nox -s peers` makes it and runs this. Without it torchax and
torch_xla are left out. torch_xla brings an XLA of its own, older than jaxlib's.

On a simulated TPU the values are computed by XLA:CPU: these are figures of the software, not of a
TPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _measure import Spread, ratios, save
from _peer_child import CANDIDATES

CHILD = Path(__file__).with_name("_peer_child.py")
FOREIGN = ("torchax", "torch_xla")
#: What the others are compared with.
BASE = "jax.jit by hand"
#: Steps of one turn.
CALLS = {"dlrm": 40}
MODELS = ("gpt", "resnet", "dlrm", "criteo")
#: A candidate that has not answered by then is ended, and has failed.
PATIENCE_S = 400.0


class Candidate:
    """A process that trains; it fails alone."""

    def __init__(self, python: Path, name: str, model: str, log: Path) -> None:
        self._log = log
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [str(python), str(CHILD), name, model],
                cwd=CHILD.parent,
                env={**os.environ, "JAX_TRACEBACK_FILTERING": "off"},  # the last line is the error
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.first = self._read()

    def run(self, steps: int) -> dict[str, float]:
        """Milliseconds per step."""
        assert self._process.stdin is not None
        print(steps, file=self._process.stdin, flush=True)
        return self._read()

    def end(self) -> None:
        """Let the process go."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, float]:
        """The next answer.

        Raises:
            RuntimeError: the process has ended; the last line it wrote says why.
        """
        assert self._process.stdout is not None
        watch = threading.Timer(PATIENCE_S, self._process.kill)
        watch.start()
        line = self._process.stdout.readline()
        late = not watch.is_alive()
        watch.cancel()
        if line:
            figures: dict[str, float] = json.loads(line)
            return figures
        self._process.wait()
        if late:
            raise RuntimeError(f"no answer in {PATIENCE_S:.0f} s")
        said = [text for text in self._log.read_text().splitlines() if text.strip()]
        raise RuntimeError(said[-1] if said else f"ended with {self._process.returncode}")


def measure(
    model: str, pythons: Mapping[str, Path], rounds: int, logs: Path
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Figures of each candidate that runs, and why the others do not."""
    running: dict[str, Candidate] = {}
    failed: dict[str, str] = {}
    for name, python in pythons.items():
        try:
            running[name] = Candidate(python, name, model, logs / f"{name}.log")
        except RuntimeError as error:
            failed[name] = str(error)
        print(f"  {model}, {name}: {failed.get(name, 'ready')}", file=sys.stderr, flush=True)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in running}
    for _ in range(rounds):
        for name in [name for name in running if name not in failed]:
            try:
                taken[name].append(running[name].run(CALLS.get(model, 4)))
            except RuntimeError as error:
                failed[name] = str(error)
                print(f"  {model}, {name}: {error}", file=sys.stderr, flush=True)
    for candidate in running.values():
        candidate.end()
    if BASE in failed:
        return {}, failed  # nothing to compare with
    lasted = {name: turns for name, turns in taken.items() if name not in failed}
    cpu = {name: [turn["cpu_ms"] for turn in turns] for name, turns in lasted.items()}
    wall = {name: [turn["wall_ms"] for turn in turns] for name, turns in lasted.items()}
    over = ratios(cpu, BASE)
    return {
        name: {
            **{key: round(value, 4) for key, value in running[name].first.items()},
            "cpu_ms": Spread.of(cpu[name]),
            "wall_ms": Spread.of(wall[name]),
            f"cpu over {BASE}": over[name],
        }
        for name in lasted
    }, failed


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, and save with ``--save``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS), help="which models")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", type=Path, help="environment with requirements/peers.txt")
    others = [name for name in CANDIDATES if name != BASE]
    parser.add_argument("--without", nargs="*", default=[], choices=others, metavar="CANDIDATE")
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args(argv)
    unknown = set(args.models) - set(MODELS)
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}. Models: {', '.join(MODELS)}.")
    ours = Path(sys.executable)
    pythons = {name: ours for name in CANDIDATES if not name.startswith(FOREIGN)}
    if args.peers:
        theirs = args.peers.absolute() / "bin" / "python"
        pythons |= {name: theirs for name in CANDIDATES if name.startswith(FOREIGN)}
    pythons = {name: path for name, path in pythons.items() if name not in args.without}
    figures: dict[str, Any] = {}
    for model in args.models:
        with tempfile.TemporaryDirectory() as logs:
            found, failed = measure(model, pythons, args.rounds, Path(logs))
        figures[model] = found | {name: f"fails: {reason}" for name, reason in failed.items()}
        for name, row in found.items():
            print(f"{model:7s} {name:20s} {row['cpu_ms']} ms, {row[f'cpu over {BASE}']} of {BASE}")
    if args.save:
        print(save("peers", figures), file=sys.stderr)


if __name__ == "__main__":
    main()
