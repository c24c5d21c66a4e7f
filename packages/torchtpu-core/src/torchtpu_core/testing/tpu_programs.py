# SPDX-License-Identifier: Apache-2.0
"""Compile the programs of PyTorch's operator database with XLA's TPU compiler.

Every operator of a sample is a program in Strict mode. Each program that the device compiles is
lowered for a TPU as well, some of each operator, and all are given to the compiler, which needs
libtpu and no TPU. What it refuses has another form for TPUs, or is listed in
`torchtpu_core.lowering.tpu_limits`. Run by the nox session ``tpu_programs``.

    python -m torchtpu_core.testing.tpu_programs --dtypes float32 --json programs.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import torch

from torchtpu_core.errors import HostOnlyError
from torchtpu_core.runtime import compiling, host_only, modes
from torchtpu_core.targets import parse_target
from torchtpu_core.testing import op_database, op_sources
from torchtpu_core.xla_tpu import lowering
from torchtpu_core.xla_tpu.trying import try_all

#: Programs of one operator that are compiled.
OF_EACH = 2


class Programs:
    """Programs lowered for a TPU, as the device compiles them for itself.

    Attributes:
        target: the slice they are lowered for.
        lowered: MLIR bytecode by name.
        refused: what could not be lowered, with the error.
    """

    def __init__(self, target: str) -> None:
        self.target = parse_target(target)
        self.lowered: dict[str, bytes] = {}
        self.refused: dict[str, str] = {}
        self._seen: Counter[str] = Counter()

    @contextlib.contextmanager
    def collecting(self, prefix: str) -> Iterator[None]:
        """Keep what is compiled inside the block, as on a process with a real TPU."""
        lower = compiling._lower

        def both(function: Any, avals: Sequence[Any], donated: Any, name: str) -> Any:
            self._keep(f"{prefix}{name}", function, avals)
            return lower(function, avals, donated, name)

        with (
            mock.patch.object(compiling, "_lower", both),
            mock.patch.object(host_only, "is_real_tpu", lambda: True),
        ):
            yield

    def _keep(self, name: str, function: Any, avals: Sequence[Any]) -> None:
        self._seen[name] += 1
        if self._seen[name] > OF_EACH:
            return
        structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        numbered = f"{name} {self._seen[name]}"
        try:
            made = lowering.bytecode(function, structs, self.target, keep_unused=True)
        except HostOnlyError:
            return
        except Exception as error:
            self.refused[numbered] = f"{type(error).__name__}: {error}"[:500]
            return
        self.lowered[numbered] = made


def collect(programs: Programs, dtype: str, names: frozenset[str], samples: int) -> None:
    """Run samples of the operator database; what they give is compared elsewhere."""
    for op in op_sources.DATABASES["op_db"]():
        if getattr(torch, dtype) in op.supported_dtypes("cpu") and (not names or op.name in names):
            with programs.collecting(f"{dtype} "):
                for index in range(samples):
                    op_database.sweep_sample(op, getattr(torch, dtype), index)


def main() -> None:
    """Sweep from the command line; the exit status is 1 if a program does not compile."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--names", default="", help="comma list; all by default")
    parser.add_argument("--samples", type=int, default=2, help="of each entry")
    parser.add_argument("--target", default="v5e:1x1")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    modes.enter("strict")
    programs = Programs(args.target)
    for dtype in args.dtypes.split(","):
        collect(programs, dtype, frozenset(filter(None, args.names.split(","))), args.samples)
        print(f"{dtype}: {len(programs.lowered)} programs so far", flush=True)
    said = try_all(
        programs.lowered,
        programs.target,
        progress=lambda done: print(f"{done} of {len(programs.lowered)} compiled", flush=True),
    )
    refused = programs.refused | {name: words[:500] for name, words in said.items() if words}
    counts = Counter(_dtype(name) for name in said)
    print(f"{sum(counts.values())} programs, {len(refused)} refused")
    for name, words in refused.items():
        print(f"  {name}: {words[:200]}")
    if args.json:
        _save(args.json, args.target, counts, refused)
    sys.exit(bool(refused))


def _save(path: Path, target: str, counts: Counter[str], refused: dict[str, str]) -> None:
    """Write what was found; other dtypes of an earlier sweep by the same compiler stay."""
    swept_with = {"libtpu": version("libtpu"), "torch": torch.__version__, "target": target}
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    kept = before if before.get("swept_with") == swept_with else {"programs": {}, "refused": {}}
    left = {n: words for n, words in kept["refused"].items() if _dtype(n) not in counts}
    found = {
        "swept_with": swept_with,
        "programs": kept["programs"] | counts,
        "refused": left | refused,
    }
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _dtype(name: str) -> str:
    return name.partition(" ")[0]


if __name__ == "__main__":
    main()
