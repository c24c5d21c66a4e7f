# SPDX-License-Identifier: Apache-2.0
"""Install some of the distributions, not editable, into the environment that runs this.

    python tools/install.py core eager
    python tools/install.py --constraint requirements/oldest.txt core eager

torch first, then the build tools, then wheels of the distributions, built without isolation. tox
and nox call this: tox reads square brackets in a command as its own, and the order matters.

A wheel is built from a copy of the sources, so that nothing an earlier build left behind gets
into it, and kept in `.wheels/` under a hash of what it was made from: the environments of a tox
run compile the device once, not once each.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sources import ROOT

DISTRIBUTIONS = ("core", "eager", "compile", "distributed", "kernels")
NO_SOURCES = ("build", "dist", "__pycache__", "*.egg-info", "*.so", "*.py[cod]")
REQUIREMENTS = ("requirements/torch.txt", "requirements/build.txt")


def pip(*arguments: str) -> None:
    """Run this environment's pip at the top of the repository, or stop with what failed."""
    command = [sys.executable, "-m", "pip", *arguments]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise SystemExit(f"install: pip {' '.join(arguments)} failed, see above.")


def prerequisites(constraint: str | None) -> list[list[str]]:
    """The arguments of the `pip install` calls that come before the wheels, in order."""
    limits = ["--constraint", constraint] if constraint else []
    torch = ["-r", REQUIREMENTS[0], *limits]
    return [torch, [*torch, "-r", REQUIREMENTS[1]]]


def copy_sources(distribution: Path, destination: Path) -> list[Path]:
    """Copy what a wheel is built from, links as files; return the copies, sorted."""
    shutil.copytree(distribution, destination, ignore=shutil.ignore_patterns(*NO_SOURCES))
    return sorted(path for path in destination.rglob("*") if path.is_file())


def fingerprint(sources: Path, files: list[Path]) -> str:
    """A hash of what decides a wheel's content: this Python, the requirements, the sources."""
    digest = hashlib.sha256(f"{sys.version}\0{sys.platform}\0".encode())
    for requirement in REQUIREMENTS:
        digest.update((ROOT / requirement).read_bytes())
    for file in files:
        digest.update(f"\0{file.relative_to(sources)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def wheel(distribution: Path, store: Path) -> Path:
    """The wheel of a distribution: the one of the store if its sources are unchanged, else built.

    Args:
        distribution: the folder of its pyproject.toml.
        store: where wheels are kept; older ones of the same distribution are removed.
    """
    shelf = store / distribution.name
    with tempfile.TemporaryDirectory() as temporary:
        sources = Path(temporary, distribution.name)
        kept = shelf / fingerprint(sources, copy_sources(distribution, sources))
        if not kept.is_dir():
            built = Path(temporary, "wheel")
            pip("wheel", "--no-deps", "--no-build-isolation", "-w", str(built), str(sources))
            shutil.rmtree(shelf, ignore_errors=True)
            shutil.copytree(built, kept)
    return next(kept.glob("*.whl"))


def main(argv: list[str] | None = None) -> int:
    """Install; 0 if every step worked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--constraint", help="a pip constraints file, relative to the repository")
    parser.add_argument("distributions", nargs="+", choices=DISTRIBUTIONS)
    args = parser.parse_args(argv)
    steps = prerequisites(args.constraint)
    for step in steps:
        pip("install", "--no-input", *step)
    names = [f"torchtpu-{name}" for name in args.distributions]
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wheels = [str(wheel(ROOT / "packages" / name, ROOT / ".wheels")) for name in names]
        # pip leaves an installed wheel of the same version alone, whatever its content.
        pip("uninstall", "--yes", *names)
        pip("install", "--no-input", *steps[0], *wheels)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
