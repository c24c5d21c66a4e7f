# SPDX-License-Identifier: Apache-2.0
"""All distributions have the version in `VERSION` and ask for each other at exactly that one.

``--write`` brings the pins in the pyproject files up to date after `VERSION` has changed.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from sources import ROOT, Problem, report

PIN = re.compile(r'"(torchtpu-[a-z]+)([^"]*)"')


def pyprojects(root: Path) -> list[Path]:
    """The pyproject files of the distributions."""
    return sorted(root.glob("packages/*/pyproject.toml"))


def problems(root: Path) -> list[Problem]:
    """Pins on siblings that are not exactly the version, and packages with another source."""
    version = (root / "VERSION").read_text().strip()
    found: list[Problem] = []
    for path in pyprojects(root):
        relative = path.relative_to(root)
        if (path.parent / "VERSION").resolve() != (root / "VERSION").resolve():
            message = "VERSION beside it must be a link to the one at the top"
            found.append(Problem(path=relative, line=1, message=message))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for name, pin in PIN.findall(line):
                if pin != f"=={version}" and not line.startswith("name ="):
                    message = f"{name}{pin} must be {name}=={version}: run with --write"
                    found.append(Problem(path=relative, line=number, message=message))
    return found


def write(root: Path) -> None:
    """Set every pin on a sibling to the version."""
    version = (root / "VERSION").read_text().strip()
    for path in pyprojects(root):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text(
            "".join(
                line if line.startswith("name =") else PIN.sub(rf'"\1=={version}"', line)
                for line in lines
            )
        )


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Check the repository, or rewrite the pins first; 0 if all agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="rewrite the pins")
    if parser.parse_args(argv).write:
        write(root)
    return report(problems(root), "check_versions")


if __name__ == "__main__":
    raise SystemExit(main())
