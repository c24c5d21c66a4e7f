# SPDX-License-Identifier: Apache-2.0
"""Which processes run, and the helper that ends with its last connection."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading

import jax  # noqa: F401 - before jaxlib, whose log level it sets
import pytest
from jaxlib import _jax
from torchtpu_distributed import coordinator, processes
from torchtpu_distributed.processes import Process


def started() -> tuple[subprocess.Popen, Process]:
    """A process that sleeps, and its record."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    me = processes.this_process(0, "")
    ticks = processes._state(child.pid)
    assert ticks is not None
    return child, dataclasses.replace(me, pid=child.pid, started=ticks[1])


def test_record_survives_the_store():
    me = processes.this_process(3, "127.0.0.1:1")
    assert Process.decode(me.encode()) == me


def test_this_process_runs():
    assert processes.is_running(processes.this_process(0, "")) is True


def test_killed_process_does_not_run_even_before_it_is_reaped():
    child, record = started()
    assert processes.is_running(record) is True
    child.send_signal(signal.SIGKILL)
    while processes.is_running(record):
        pass
    assert processes.is_running(record) is False
    child.wait(timeout=10)


def test_reused_process_number_is_another_process():
    me = processes.this_process(0, "")
    assert processes.is_running(dataclasses.replace(me, started=me.started + 1)) is False


def test_process_of_another_host_is_unknown():
    me = processes.this_process(0, "")
    assert processes.is_running(dataclasses.replace(me, host="another")) is None


def _on(host: str, address: str, store_address: str = "") -> Process:
    route = (address, store_address)
    return dataclasses.replace(processes.this_process(0, "", route), host=host, hostname=host)


def test_address_of_a_machine_is_one_that_others_reach():
    near, far = _on("a", "127.0.1.1", "127.0.1.1"), _on("b", "10.0.0.2", "10.0.0.1")
    assert processes.reachable_address(far, [near, far]) == "10.0.0.2"
    assert processes.reachable_address(near, [near, far]) == "10.0.0.1"
    assert processes.reachable_address(near, [near, near]) == "127.0.1.1"


def test_machines_without_a_store_in_the_network_are_reached_by_name():
    near, far = _on("a", ""), _on("b", "")
    assert processes.reachable_address(near, [near, near]) == "127.0.0.1"
    assert processes.reachable_address(near, [near, far]) == "a"


def helper_thread() -> tuple[threading.Thread, socket.socket, int]:
    """The helper's wait, where ranks connect, and the pipe of the process that started it."""
    lifeline = socket.create_server(("127.0.0.1", 0))
    reading, writing = os.pipe()
    helper = threading.Thread(target=coordinator.wait_until_deserted, args=(lifeline, reading))
    helper.start()
    return helper, lifeline, writing


def test_helper_waits_for_its_last_connection():
    helper, lifeline, pipe = helper_thread()
    address = f"127.0.0.1:{lifeline.getsockname()[1]}"
    first, second = coordinator.connect_lifeline(address), coordinator.connect_lifeline(address)
    first.close()
    os.close(pipe)
    helper.join(timeout=1.5)
    assert helper.is_alive()
    second.close()
    helper.join(timeout=10)
    assert not helper.is_alive()
    lifeline.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_helper_serves_both_protocols(host):
    service, lifeline = coordinator.start(host, 1)
    with coordinator.connect_lifeline(lifeline) as connection:
        assert connection.getpeername()[0] == host
        runtime = _jax.get_distributed_runtime_client(service, 0, init_timeout=10)
        runtime.connect()
        runtime.shutdown()


def test_helper_ends_with_its_starter_if_nobody_connects():
    helper, lifeline, pipe = helper_thread()
    os.close(pipe)
    helper.join(timeout=10)
    assert not helper.is_alive()
    lifeline.close()
