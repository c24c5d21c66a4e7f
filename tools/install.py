# SPDX-License-Identifier: Apache-2.0
"""Install some of the distributions, not editable, into the environment that runs this.

    python tools/install.py core eager
    python tools/install.py --constraint requirements/oldest.txt core eager

torch first, then the build tools, then the distributions without build isolation. tox and nox
call this: tox reads square brackets in a command as its own, and the order matters.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from sources import ROOT

DISTRIBUTIONS = ("core", "eager", "compile", "distributed", "kernels")


def steps(distributions: list[str], constraint: str | None) -> list[list[str]]:
    """The arguments of the pip calls, in order."""
    limits = ["--constraint", constraint] if constraint else []
    torch = ["-r", "requirements/torch.txt", *limits]
    packages = [f"./packages/torchtpu-{name}" for name in distributions]
    return [
        torch,
        [*torch, "-r", "requirements/build.txt"],
        [*torch, "--no-build-isolation", *packages],
    ]


def main(argv: list[str] | None = None) -> int:
    """Install; 0 if every step worked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--constraint", help="a pip constraints file, relative to the repository")
    parser.add_argument("distributions", nargs="+", choices=DISTRIBUTIONS)
    args = parser.parse_args(argv)
    for step in steps(args.distributions, args.constraint):
        command = [sys.executable, "-m", "pip", "install", "--no-input", *step]
        if code := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
