# SPDX-License-Identifier: Apache-2.0
"""bootstrap.py: stages run when their inputs change and are repeated after a failure."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from sources import ROOT


@pytest.fixture
def bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with its environment in a folder of the test."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "bootstrap.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path)
    return module


def test_stage_runs_once_for_the_same_inputs_and_again_for_others(bootstrap: ModuleType) -> None:
    ran = []
    for hash_ in ("a", "a", "b", "b", "a"):
        with bootstrap.stage("x", hash_) as stale:
            ran.append(stale)
    assert ran == [True, False, True, False, True]


def test_stage_that_failed_runs_again(bootstrap: ModuleType) -> None:
    with bootstrap.stage("x", "a"):
        pass
    with pytest.raises(SystemExit), bootstrap.stage("x", "b") as stale:
        assert stale
        raise SystemExit("pip failed")
    with bootstrap.stage("x", "a") as stale:
        assert stale


def test_environment_drops_what_would_install_elsewhere(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_TARGET", "/elsewhere")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("PIP_INDEX_URL", "an index")
    made = bootstrap.environment(MAX_JOBS="2")
    assert not {"PIP_TARGET", "PYTHONPATH"} & made.keys()
    assert (made["PIP_INDEX_URL"], made["MAX_JOBS"], made["PYTHONNOUSERSITE"]) == (
        "an index",
        "2",
        "1",
    )


def test_build_inputs_are_the_sources_of_the_compiled_part(bootstrap: ModuleType) -> None:
    names = {path.name for path in bootstrap.build_inputs()}
    assert {"VERSION", "pyproject.toml", "setup.py", "compiled_part.py", "bindings.cpp"} <= names


def test_missing_compiler_is_an_error_with_the_remedy() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "bootstrap.py"), "install"],
        env={"CXX": "no-such-compiler", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "'no-such-compiler' is not on PATH. Install g++ or clang++" in done.stderr
