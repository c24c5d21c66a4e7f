# SPDX-License-Identifier: Apache-2.0
"""Everything that is checked without running the project: lint, types, the repository's rules.

    python tools/static_checks.py [lint] [types]

All checks run even if one fails; the last line names those that failed.
"""

from __future__ import annotations

import os
import subprocess
import sys

from sources import ROOT

KINDS = ("lint", "types")


def commands(kind: str) -> dict[str, list[str]]:
    """The checks of a kind: a name for the report and what Python runs."""
    if kind == "lint":
        rules = {f.name: [f"tools/{f.name}"] for f in sorted((ROOT / "tools").glob("check_*.py"))}
        ruff = {
            "ruff check": ["-m", "ruff", "check", "."],
            "ruff format": ["-m", "ruff", "format", "--check", "."],
        }
        return ruff | rules
    packages = sorted(p.parent.name for p in ROOT.glob("packages/*/src/*/__init__.py"))
    scripts = ["bootstrap.py", *(f"tools/{f.name}" for f in sorted((ROOT / "tools").glob("*.py")))]
    return {
        "mypy on packages": ["-m", "mypy", *(a for package in packages for a in ("-p", package))],
        "mypy on tools": ["-m", "mypy", *scripts],
    }


def main(kinds: list[str]) -> int:
    """Run the checks of some kinds, all by default; 0 if none failed."""
    if unknown := set(kinds) - set(KINDS):
        raise SystemExit(f"static_checks: no kind {sorted(unknown)}; there are {', '.join(KINDS)}.")
    folders = [*sorted(ROOT.glob("packages/*/src")), ROOT / "tools"]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(str(f) for f in folders)}
    failed = []
    for kind in kinds or KINDS:
        for name, command in commands(kind).items():
            print(f"static_checks: {name}", flush=True)
            if subprocess.run([sys.executable, *command], cwd=ROOT, env=environment).returncode:
                failed.append(name)
    print(f"static_checks: failed: {', '.join(failed)}" if failed else "static_checks: ok")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
