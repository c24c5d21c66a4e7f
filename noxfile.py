# SPDX-License-Identifier: Apache-2.0
"""Sessions that need logic; the plain environments are in tox.ini."""

from __future__ import annotations

from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
DISTRIBUTIONS = ("core", "eager", "compile", "distributed", "kernels")
TRY_OUT = """
import torch
x = torch.arange(6.0, device="tpu").reshape(2, 3)
assert (x @ x.T).cpu().tolist() == [[5.0, 14.0], [14.0, 50.0]]
print("wheels: ok on", torch.tpu.get_device_name())
"""

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["wheels"]


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the wheels by way of source distributions, inspect them, use them elsewhere."""
    dist = ROOT / "dist"
    for old in [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]:
        old.unlink()
    session.install("-r", "requirements/torch.txt")
    session.install("-r", "requirements/torch.txt", "-r", "requirements/build.txt", "build")
    for name in DISTRIBUTIONS:
        # Without --wheel and --sdist the wheel is built from the source distribution, so a file
        # that the latter lacks is noticed.
        session.run(
            "python", "-m", "build", "--no-isolation", "-o", "dist", f"packages/torchtpu-{name}"
        )
    session.run("python", "tools/inspect_wheels.py", "dist")

    elsewhere = Path(session.create_tmp(), "elsewhere")
    session.run("python", "-m", "venv", "--clear", str(elsewhere))
    python = str(elsewhere / "bin" / "python")
    found = sorted(str(wheel) for wheel in dist.glob("*.whl"))
    pip = (python, "-m", "pip", "install", "-q", "-r", "requirements/torch.txt")
    session.run(*pip, *found, external=True)
    with session.chdir(elsewhere):
        session.run(python, "-c", TRY_OUT, external=True)


@nox.session
def slow(session: nox.Session) -> None:
    """Run the tests marked slow, which bootstrap.py and tox leave out."""
    session.install("-r", "requirements/torch.txt")
    session.run("python", "tools/install.py", *DISTRIBUTIONS)
    session.install("-r", "requirements/torch.txt", "-r", "requirements/test.txt")
    session.run("python", "-m", "pytest", "-m", "slow", *(session.posargs or ["packages"]))
