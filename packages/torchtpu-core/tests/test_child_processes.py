# SPDX-License-Identifier: Apache-2.0
"""Children end with their parent, whatever ends it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from torchtpu_core.child_processes import Child

WAIT = "import threading; threading.Event().wait()"
PARENT = f"""
from torchtpu_core.child_processes import Child
child = Child({WAIT!r}, [])
print("started", flush=True)
child.wait()
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_child_of_a_killed_parent_ends(how) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"started\n"
    parent.send_signal(how)
    # The child holds the pipe too: it is at its end once both have ended.
    assert parent.communicate(timeout=60)[0] == b""


def test_child_is_ended_when_its_block_is_left() -> None:
    with Child(WAIT, []) as child:
        assert child.poll() is None
    assert child.returncode == -signal.SIGKILL


FORKING = """
import os, sys, threading
from pathlib import Path
from torchtpu_core.child_processes import fork
folder = Path(sys.argv[1])
def say_and(what):
    print("said"); print("warned", file=sys.stderr); what()
def fail():
    raise ValueError("no")
ways = [lambda: None, fail, lambda: sys.exit("a reason"), lambda: sys.exit(3)]
ids = [
    fork(lambda: say_and(way), output=folder / f"out{i}", errors=folder / f"err{i}")
    for i, way in enumerate(ways)
]
print([os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in ids])
"""


def test_forks_end_as_programs_do(tmp_path) -> None:
    with Child(FORKING, [str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.communicate(timeout=60)[0] == "[0, 1, 1, 3]\n"
    assert [(tmp_path / f"out{i}").read_text() for i in range(4)] == ["said\n"] * 4
    errors = [(tmp_path / f"err{i}").read_text() for i in range(4)]
    assert errors[0] == errors[3] == "warned\n" and errors[2] == "warned\na reason\n"
    assert errors[1].startswith("warned\nTraceback") and errors[1].endswith("ValueError: no\n")


def test_forks_of_a_killed_childs_parent_end() -> None:
    forking = "import os, time; from pathlib import Path; from torchtpu_core.child_processes "
    forking += "import fork; null = Path(os.devnull); one = fork(lambda: time.sleep(1e6), "
    forking += "output=None, errors=null); print('forked', flush=True); os.waitpid(one, 0)"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.replace(repr(WAIT), repr(forking))], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    assert {parent.stdout.readline() for _ in range(2)} == {b"started\n", b"forked\n"}
    parent.kill()
    assert parent.communicate(timeout=60)[0] == b""  # the fork holds the pipe too
