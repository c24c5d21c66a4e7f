# SPDX-License-Identifier: Apache-2.0
"""Forked processes begin and end as new interpreters do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import warm_python

WARM = "import sys; print('torch' in sys.modules)"

needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are Linux's")


def _run(text: str, *args: str, **options: object) -> subprocess.CompletedProcess[str]:
    return warm_python.run(
        [sys.executable, "-c", text, *args], env=_environment(**options.pop("env", {})), **options
    )


def _environment(**more: str) -> dict[str, str]:
    """That of this moment: tests that ran before may have left something in it."""
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


@needs_linux
def test_a_fork_is_a_child_with_torch_and_its_own_arguments_folder_and_variables(tmp_path):
    text = "import os, sys; print('torch' in sys.modules, os.getppid(), os.getcwd(), sys.argv, X)"
    done = _run(text.replace("X", "os.environ['X']"), "a", "b", cwd=tmp_path, env={"X": "x"})
    assert done.stdout == f"True {os.getpid()} {tmp_path} ['-c', 'a', 'b'] x\n"


@needs_linux
def test_the_backend_is_loaded_unless_it_is_not_wanted():
    text = "import torch; print(hasattr(torch, 'tpu'))"
    assert _run(text).stdout == "True\n"
    assert _run(text, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).stdout == "False\n"


@needs_linux
@pytest.mark.parametrize("name", ["TF_CPP_MIN_LOG_LEVEL", "TORCHINDUCTOR_CACHE_DIR"])
def test_what_jax_and_torch_set_when_they_run_does_not_end_forking(name):
    assert _run(WARM, env={name: "1"}).stdout == "True\n"
    assert _run(WARM, env={name: "2"}).stdout == "True\n"


@pytest.mark.parametrize(
    "text, code, said",
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "Interrupt"),
        ("import atexit; atexit.register(print, 'end', flush=True)", 0, "end"),
    ],
)
def test_a_fork_ends_as_an_interpreter_does(text, code, said):
    done = _run(text)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


def test_a_script_finds_its_neighbours_and_is_main(tmp_path):
    (tmp_path / "neighbour.py").write_text("NAME = 'found'")
    script = tmp_path / "script.py"
    script.write_text("import neighbour\nprint(neighbour.NAME, __name__, __file__)")
    done = warm_python.run([sys.executable, script], env=_environment())
    assert done.stdout == f"found __main__ {script}\n"


@pytest.mark.parametrize(
    "variable, value",
    [
        ("JAX_PLATFORMS", "cpu"),
        ("OMP_NUM_THREADS", "7"),
        ("PYTHONHASHSEED", "7"),
        ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
    ],
)
def test_what_is_read_early_starts_a_new_interpreter(variable, value):
    assert _run(WARM, env={variable: value}).stdout == "False\n"


def test_flags_and_modules_start_a_new_interpreter():
    for command in (["-X", "utf8", "-c", WARM], ["-m", "platform"]):
        done = warm_python.run([sys.executable, *command], env=_environment())
        assert done.returncode == 0 and "True" not in done.stdout


def test_what_takes_too_long_is_killed():
    with pytest.raises(subprocess.TimeoutExpired):
        _run("import time; time.sleep(60)", timeout=0.2)
