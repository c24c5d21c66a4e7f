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
