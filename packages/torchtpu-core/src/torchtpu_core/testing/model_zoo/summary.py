# SPDX-License-Identifier: Apache-2.0
"""From raw sweeps of the model zoo to the file that the docs show.

    python -m torchtpu_core.testing.model_zoo.summary raw/*.json \\
        --out benchmarks/results/model_zoo.json

An outcome in the file is replaced by a new one of the same architecture and mode, and kept
otherwise; each says when it was made.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "jax", "jaxlib", "transformers", "torchtpu-core")


def merged(old: Iterable[dict[str, Any]], new: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Outcomes with the later ones in place of earlier ones, in the earlier order."""
    found = {(o["name"], o["mode"]): o for o in old}
    found |= {(o["name"], o["mode"]): o for o in new}
    return list(found.values())


def counts(outcomes: Iterable[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """By mode: how many architectures were tried, how many agree, how many used the host."""
    tried: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        of_mode = tried.setdefault(outcome["mode"], Counter(tried=0, agree=0, with_fallbacks=0))
        of_mode["tried"] += 1
        of_mode["agree"] += outcome["status"] == "pass"
        of_mode["with_fallbacks"] += bool(outcome["fallbacks"])
    return {mode: dict(found) for mode, found in tried.items()}


def environment() -> dict[str, str]:
    """Versions that the outcomes depend on."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Read raw files, merge them into the result and write it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("raw", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    old = json.loads(args.out.read_text())["outcomes"] if args.out.exists() else []
    new = [outcome for path in args.raw for outcome in json.loads(path.read_text())]
    outcomes = merged(old, new)
    content = {
        "command": "python -m torchtpu_core.testing.model_zoo",
        "environment": environment(),
        "counts": counts(outcomes),
        "outcomes": outcomes,
    }
    args.out.write_text(json.dumps(content, indent=1) + "\n")
    for mode, found in counts(outcomes).items():
        print(f"{mode}: {found['agree']} of {found['tried']} agree with the CPU")


if __name__ == "__main__":
    main()
