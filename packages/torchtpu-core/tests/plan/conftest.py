# SPDX-License-Identifier: Apache-2.0
"""Plans of scripts, made by the command as a user would."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import warm_python


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., dict]:
    """Plans a script's text on v5e:2x2, or as more options say: the plan, and what was said."""

    def plan(text: str, *options: str) -> dict:
        script = tmp_path / "script.py"
        script.write_text(text)
        code = "from torchtpu_core.cli.app import main; main()"
        command = [sys.executable, "-c", code, "plan", str(script), "--json", "plan.json"]
        command += ["--target", "v5e:2x2", *options]
        done = warm_python.run(command, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        made = json.loads((tmp_path / "plan.json").read_text())
        made["said"] = done.stdout
        return made

    return plan
