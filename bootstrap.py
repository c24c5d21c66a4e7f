# SPDX-License-Identifier: Apache-2.0
"""From a fresh clone to a running demo or test suite, with the standard library only.

    python3 bootstrap.py demo       train both examples on cpu and on tpu, losses side by side
    python3 bootstrap.py test       lint, types, repository checks, then all tests
    python3 bootstrap.py install    only make the environment

Everything is installed into `.venv` beside this file and nothing anywhere else. torch comes
first, because the compiled part is built against it, without build isolation: isolation would
fetch a second torch. Each stage leaves a stamp with a hash of what it was made from, so a
second call installs only what has changed. pip's own settings (index, proxies, caches) apply.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
DISTRIBUTIONS = ("core", "eager", "compile", "distributed", "kernels")
TESTED = ("packages", "tools", "examples", "docs")

#: pip settings that would install somewhere else than into the environment it runs in.
REDIRECTIONS = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PYTHONPATH", "PYTHONHOME")


def environment(**extra: str) -> dict[str, str]:
    """The variables for a child process: ours, without what would leave the environment."""
    kept = {name: value for name, value in os.environ.items() if name not in REDIRECTIONS}
    path = os.pathsep.join([str(PYTHON.parent), os.environ.get("PATH", os.defpath)])
    return {**kept, "PYTHONNOUSERSITE": "1", "VIRTUAL_ENV": str(VENV), "PATH": path, **extra}


def run(command: list[str], **extra: str) -> int:
    """Run a command at the top of the repository, without stdin; return its exit code."""
    print("+", *command, flush=True)
    return subprocess.run(
        command, cwd=ROOT, env=environment(**extra), stdin=subprocess.DEVNULL, check=False
    ).returncode


def pip(*arguments: str, **extra: str) -> None:
    """Run the environment's pip install, or stop with what failed."""
    options = ["--disable-pip-version-check", "--no-input", "--quiet"]
    if run([str(PYTHON), "-m", "pip", "install", *options, *arguments], **extra):
        raise SystemExit(f"bootstrap: pip install {' '.join(arguments)} failed, see above.")


def check_machine() -> None:
    """Stop with the remedy if Python, its headers or the C++ compiler will not do."""
    if sys.version_info < (3, 11):  # noqa: UP036 - nothing else has checked it yet
        raise SystemExit(
            f"bootstrap: Python 3.11 or newer is needed, this is {sys.version.split()[0]} "
            f"({sys.executable}). Call it with a newer one, such as: python3.12 bootstrap.py demo"
        )
    compiler = os.environ.get("CXX", "c++").split()[0]
    if shutil.which(compiler) is None:
        raise SystemExit(
            f"bootstrap: no C++ compiler: {compiler!r} is not on PATH. Install g++ or clang++ "
            "(Debian and Ubuntu: apt-get install g++), or set CXX to your compiler."
        )
    probe = [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(probe, input="", text=True, capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"bootstrap: {compiler} does not compile C++20: {done.stderr.strip()}")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        raise SystemExit(
            f"bootstrap: Python's headers are missing ({header}). Install them "
            "(Debian and Ubuntu: apt-get install python3-dev)."
        )


def fingerprint(*parts: str, files: Iterable[Path] = ()) -> str:
    """A hash of some texts and of the contents of some files."""
    digest = hashlib.sha256()
    for part in (sys.version, sys.executable, str(ROOT), *parts):
        digest.update(part.encode() + b"\0")
    for file in sorted(files):
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def stage(name: str, hash_: str) -> Iterator[bool]:
    """Yield whether the stage must run; stamp it if it ran to its end."""
    stamp = VENV / f".stage-{name}"
    stale = not stamp.exists() or stamp.read_text() != hash_
    if stale:
        stamp.unlink(missing_ok=True)
        print(f"bootstrap: {name}", flush=True)
    yield stale
    if stale:
        stamp.write_text(hash_)


def make_environment() -> None:
    """Create `.venv`, with pip even where the system's Python lacks ensurepip."""
    has_ensurepip = importlib.util.find_spec("ensurepip") is not None
    venv.EnvBuilder(clear=True, symlinks=True, with_pip=has_ensurepip).create(VENV)
    if not has_ensurepip:
        command = [sys.executable, "-m", "pip", "--python", str(PYTHON), "install", "pip"]
        if run(command):
            raise SystemExit("bootstrap: this Python has no pip: install it (python3-pip).")


def build_inputs() -> list[Path]:
    """The files whose change makes a reinstall of the packages necessary."""
    packages = ROOT / "packages"
    builds = ("*/pyproject.toml", "*/setup.py", "*/compiled_part.py")
    patterns = (*builds, "*/csrc/**/*.cpp", "*/csrc/**/*.h")
    return [ROOT / "VERSION", *(p for pattern in patterns for p in packages.glob(pattern))]


def install(*, tests: bool) -> None:
    """Bring `.venv` up to date."""
    check_machine()
    requirements = ROOT / "requirements"
    # torch is named in every call, so that no later one can replace it.
    torch = ("-r", "requirements/torch.txt")
    with Path(__file__).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with stage("environment", fingerprint()) as stale:
            if stale:
                make_environment()
        inputs = [requirements / "torch.txt", requirements / "build.txt"]
        with stage("torch", fingerprint(files=inputs)) as stale:
            if stale:
                pip(*torch)
                pip(*torch, "-r", "requirements/build.txt")
        with stage("packages", fingerprint(files=[*inputs, *build_inputs()])) as stale:
            if stale:
                editable = [a for d in DISTRIBUTIONS for a in ("-e", f"packages/torchtpu-{d}")]
                jobs = str(os.cpu_count() or 1)
                pip("--no-build-isolation", *torch, *editable, MAX_JOBS=jobs)
        for name in ("demo", "test") if tests else ("demo",):
            with stage(name, fingerprint(files=requirements.glob("*.txt"))) as stale:
                if stale:
                    pip(*torch, "-r", f"requirements/{name}.txt")


def demo(extra: list[str]) -> int:
    """Train both examples on both devices."""
    return run([str(PYTHON), "examples/compare.py", *extra])


def test(extra: list[str]) -> int:
    """Run all checks and tests, or pytest alone with the given arguments; 0 if all pass."""
    failed = 0 if extra else run([str(PYTHON), "tools/static_checks.py"])
    # Two processes of one thread each: the machine this must be quick on has two cores.
    usual = ["-n", "2", "--dist", "worksteal", "-q", "-m", "not slow", "--durations", "30", *TESTED]
    arguments = extra or usual
    code = run([str(PYTHON), "-m", "pytest", *arguments], OMP_NUM_THREADS="1")
    if failed:
        print("bootstrap: besides the tests, checks failed: see 'static_checks: failed' above.")
    return code or failed


def main() -> int:
    """Read the command and do it."""
    parser = argparse.ArgumentParser(description="Install into .venv, then run the demo or tests.")
    parser.add_argument("command", choices=("demo", "test", "install"))
    parser.add_argument(
        "extra", nargs=argparse.REMAINDER, help="passed on: to examples/compare.py, or to pytest"
    )
    args = parser.parse_args()
    install(tests=args.command == "test")
    if args.command == "install":
        return 0
    return demo(args.extra) if args.command == "demo" else test(args.extra)


if __name__ == "__main__":
    raise SystemExit(main())
