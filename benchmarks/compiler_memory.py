# SPDX-License-Identifier: Apache-2.0
"""The simulator's HBM peak against that of XLA's own TPU compiler, for the same steps.

    python benchmarks/compiler_memory.py [ROW ...]

Named rows alone are compiled anew; of the others only the simulator's figures are new. Needs libtpu
(``pip install 'torchtpu-core[tpu]'``) and no TPU. Each step of `steps/` is planned twice, with and
without ``--compiler xla-tpu``; both figures are for one device.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
#: Script, target and the script's own options, by the name of the row.
STEPS = {
    "mlp": ("mlp", "v5e:1x1", ""),
    "gpt": ("gpt", "v5e:1x1", ""),
    "conv": ("conv", "v5e:1x1", ""),
    "attention": ("attention", "v5e:1x1", ""),
    "fsdp": ("fsdp", "v5e:2x2", ""),
    "perceptron": ("perceptron", "v5e:1x1", "--batch 256"),
    "perceptron, bfloat16": (
        *("perceptron", "v5e:1x1"),
        "--batch 4096 --optimizer sgd --dtype bfloat16",
    ),
    "perceptron, v5p": ("perceptron", "v5p:2x2x1", "--batch 8192"),
    "resnet": ("resnet", "v5e:1x1", "--batch 64 --optimizer momentum"),
    "resnet, bfloat16": ("resnet", "v5e:1x1", "--batch 256 --optimizer sgd --dtype bfloat16"),
    "resnet, v6e": ("resnet", "v6e:1x1", "--batch 128"),
    "unet": ("unet", "v5e:1x1", "--batch 16"),
    "vit": ("vit", "v5e:1x1", "--batch 32 --optimizer adamw"),
    "vit, bfloat16": ("vit", "v5e:1x1", "--batch 128 --optimizer adamw --dtype bfloat16"),
    "vit, v6e": ("vit", "v6e:1x1", "--batch 64 --optimizer sgd --dtype bfloat16"),
    "translator": ("translator", "v5e:1x1", "--batch 16"),
    "lstm": ("lstm", "v5e:1x1", "--batch 64 --optimizer sgd"),
    "recommender": ("recommender", "v5e:1x1", "--batch 2048 --optimizer sgd"),
    "graph": ("graph", "v5e:1x1", "--batch 128"),
    "mixer": ("mixer", "v5e:1x1", "--batch 16 --optimizer sgd"),
    "mixer, bfloat16": ("mixer", "v5e:1x1", "--batch 32 --optimizer adamw --dtype bfloat16"),
    "autoencoder": ("autoencoder", "v5e:1x1", "--batch 128"),
    "separable": ("separable", "v5e:1x1", "--batch 64 --optimizer sgd"),
    "separable, bfloat16": (
        *("separable", "v5e:1x1"),
        "--batch 64 --optimizer momentum --dtype bfloat16",
    ),
    "convnext": ("convnext", "v5e:1x1", "--batch 32 --optimizer adamw"),
    "convnext, bfloat16": ("convnext", "v5e:1x1", "--batch 64 --optimizer adamw --dtype bfloat16"),
    "encoder": ("encoder", "v5e:1x1", "--batch 32 --optimizer adamw"),
    "llama": ("llama", "v5e:1x1", "--batch 4 --optimizer sgd"),
    "llama, bfloat16": ("llama", "v5e:1x1", "--batch 8 --optimizer adamw --dtype bfloat16"),
}
RUN = "import sys; from torchtpu_core.cli import main; sys.argv[0] = 'torchtpu'; main()"


def plan(script: Path, target: str, compiler: str, own: str) -> dict[str, Any]:
    """A plan's figures; `own` are the script's options."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "plan.json"
        options = ["--target", target, "--compiler", compiler, "--json", str(result)]
        command = [sys.executable, "-c", RUN, "plan", str(script), *options, "--", *own.split()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=1200)
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def _compiled(script: Path, target: str, own: str) -> dict[str, Any]:
    """The compiler's figures of a row."""
    found = plan(script, target, "xla-tpu", own)
    return {
        "compiler_peak_bytes": found["hbm"]["peak_bytes"],
        "compiler_schedule_step_s": found["step_s"],
        "compile_s": found["compiler_report"]["compile_s"],
    }


def main() -> None:
    """Plan every step twice and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to compile anew; default: all")
    chosen = parser.parse_args().rows or list(STEPS)
    if unknown := set(chosen) - STEPS.keys():
        parser.error(f"no rows {sorted(unknown)}; there are {', '.join(STEPS)}")
    packages = ("libtpu", "jax", "jaxlib", "torch", "torchtpu-core")
    versions = {name: version(name) for name in packages}
    path = HERE / "results" / "compiler_memory.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    if len(set(chosen)) < len(STEPS) and stored["versions"]["libtpu"] != versions["libtpu"]:
        parser.error("the stored rows are of another libtpu: compile them all")
    rows = {}
    for name, (script_name, target, own) in STEPS.items():
        script = HERE / "steps" / f"{script_name}.py"
        simulated = plan(script, target, "simulator", own)
        compiled = _compiled(script, target, own) if name in chosen else stored["steps"][name]
        ours, theirs = simulated["hbm"]["peak_bytes"], compiled["compiler_peak_bytes"]
        rows[name] = {
            "target": target,
            "options": own,
            "simulator_peak_bytes": ours,
            "compiler_peak_bytes": theirs,
            "difference": round(ours / theirs - 1, 4),
            "simulator_step_s": simulated["step_s"],
            "compiler_schedule_step_s": compiled["compiler_schedule_step_s"],
            "compile_s": compiled["compile_s"],
        }
        print(name, rows[name], flush=True)
    errors = sorted(abs(row["difference"]) for row in rows.values())
    ratios = [row["simulator_step_s"] / row["compiler_schedule_step_s"] for row in rows.values()]
    result = {
        "what": "HBM peak of a training step on one device: simulator against XLA's TPU compiler",
        "command": "python benchmarks/compiler_memory.py",
        "hardware": f"none (compiled ahead of time on {platform.machine()}, 2 cores, shared)",
        "simulated": True,
        "compiled_by_this_run": "all" if set(chosen) == STEPS.keys() else chosen,
        "versions": versions,
        "median_difference": errors[len(errors) // 2],
        "within_10_percent": sum(error <= 0.1 for error in errors),
        "of": len(errors),
        "median_ratio_of_step_times": round(statistics.median(ratios), 3),
        "step_times_within_20_percent": sum(1 / 1.2 <= ratio <= 1.2 for ratio in ratios),
        "steps": rows,
    }
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
