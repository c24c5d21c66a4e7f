# SPDX-License-Identifier: Apache-2.0
"""Make the plugin importable here, and installed in processes that a test starts.

Being installed means to have metadata with an entry point; a folder with both is put on the path
of those processes. That works whether or not the plugin is installed for real.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

PLUGIN = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(PLUGIN / "src"))

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Run some Python in a process in which the plugin is installed."""
    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text())["project"]
    info = tmp_path / f"torchtpu_plugin_example-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = [f"{name} = {module}" for name, module in project["entry-points"]["torchtpu"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[torchtpu]", *lines, ""]))
    path = os.pathsep.join([str(tmp_path), str(PLUGIN / "src")])

    def run(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": path, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return run
