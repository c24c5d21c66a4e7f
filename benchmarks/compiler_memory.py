# SPDX-License-Identifier: Apache-2.0
"""The simulator's HBM peak against that of XLA's own TPU compiler, for the same steps.

    python benchmarks/compiler_memory.py

Needs libtpu (``pip install 'torchtpu-core[tpu]'``) and no TPU. Each step of `steps/` is planned
twice, with and without ``--compiler xla-tpu``; both figures are for one device.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGETS = {
    "mlp": "v5e:1x1",
    "gpt": "v5e:1x1",
    "conv": "v5e:1x1",
    "attention": "v5e:1x1",
    "fsdp": "v5e:2x2",
}
RUN = "import sys; from torchtpu_core.cli import main; sys.argv[0] = 'torchtpu'; main()"


def plan(script: Path, target: str, compiler: str) -> dict[str, Any]:
    """A plan's figures."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "plan.json"
        options = ["--target", target, "--compiler", compiler, "--json", str(result)]
        command = [sys.executable, "-c", RUN, "plan", str(script), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=1200)
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Plan every step twice and write the figures."""
    rows = {}
    for name, target in TARGETS.items():
        script = HERE / "steps" / f"{name}.py"
        simulated = plan(script, target, "simulator")
        compiled = plan(script, target, "xla-tpu")
        ours, theirs = (one["hbm"]["peak_bytes"] for one in (simulated, compiled))
        rows[name] = {
            "target": target,
            "simulator_peak_bytes": ours,
            "compiler_peak_bytes": theirs,
            "difference": round(ours / theirs - 1, 4),
            "simulator_step_s": simulated["step_s"],
            "compiler_schedule_step_s": compiled["step_s"],
            "compile_s": compiled["compiler_report"]["compile_s"],
        }
        print(name, rows[name])
    packages = ("libtpu", "jax", "jaxlib", "torch", "torchtpu-core")
    result = {
        "what": "HBM peak of a training step on one device: simulator against XLA's TPU compiler",
        "command": "python benchmarks/compiler_memory.py",
        "hardware": f"none (compiled ahead of time on {platform.machine()}, 2 cores, shared)",
        "simulated": True,
        "versions": {name: version(name) for name in packages},
        "steps": rows,
    }
    path = HERE / "results" / "compiler_memory.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
