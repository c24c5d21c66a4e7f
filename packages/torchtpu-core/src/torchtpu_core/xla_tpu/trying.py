# SPDX-License-Identifier: Apache-2.0
"""Which of many programs XLA's TPU compiler takes, in as few processes as survive it.

The compiler ends its process at some programs: that one is noted, and another process goes on
with the next. Imports neither torch nor JAX.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from torchtpu_core.child_processes import Child
from torchtpu_core.targets import Target
from torchtpu_core.xla_tpu.compiling import environment, require_libtpu
from torchtpu_core.xla_tpu.topologies import topology_of

#: Said of a program at which the compiler ended its process.
ENDED = "the compiler ended its process"
#: Said of one with which it was not done in time.
LATE = "the compiler took too long"

_CHILD = "import sys, pathlib; from torchtpu_core.xla_tpu.child import try_all; "
_CHILD += "sys.exit(try_all(pathlib.Path(sys.argv[1])))"


def try_all(
    programs: Mapping[str, bytes],
    target: Target,
    *,
    timeout_s: float = 600.0,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, str]:
    """What the compiler says of each program: nothing if it compiles.

    Args:
        programs: MLIR bytecode lowered for the platform ``tpu``, by name.
        target: the slice.
        timeout_s: how long one process may take before it is ended with the program it is at.
        progress: told how many are done whenever a process has ended.

    Raises:
        MissingExtraError: libtpu is not installed.
        CompilerTargetError: libtpu does not know the chip.
    """
    require_libtpu("Compiling with XLA's TPU compiler")
    topology = topology_of(target)
    said: dict[str, str] = {}
    names = {f"{i:06d}.mlirbc": name for i, name in enumerate(programs)}
    with tempfile.TemporaryDirectory(prefix="torchtpu-xla-") as folder:
        directory = Path(folder)
        for file, name in names.items():
            (directory / file).write_bytes(programs[name])
        while left := [file for file, name in names.items() if name not in said]:
            job = {
                "topology": {"name": topology.name, "options": topology.options},
                "partitions": 1,
                "compiler_options": {},
                "programs": left,
            }
            (directory / "job.json").write_text(json.dumps(job), encoding="utf-8")
            (directory / "current").write_text(left[0], encoding="utf-8")
            how = _run(directory, timeout_s)
            for line in _lines(directory / "tried.jsonl"):
                file, words = json.loads(line)
                said[names[file]] = words
            current = names[(directory / "current").read_text(encoding="utf-8")]
            if how and current not in said:
                said[current] = how
            progress(len(said))
    return said


def _run(directory: Path, timeout_s: float) -> str:
    """Runs a child to its end; says why it did not do all."""
    with (directory / "said").open("w", encoding="utf-8") as output:
        child = Child(
            _CHILD,
            [str(directory)],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
        with child:
            try:
                return ENDED if child.wait(timeout_s) else ""
            except subprocess.TimeoutExpired:
                return LATE


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
