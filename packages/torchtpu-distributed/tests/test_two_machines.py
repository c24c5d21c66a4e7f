# SPDX-License-Identifier: Apache-2.0
"""Ranks on two machines: network namespaces of this one, with names and processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

#: The addresses of two machines, with the length of the network's prefix.
NETWORKS = {4: ("10.77.0.1/24", "10.77.0.2/24"), 6: ("fd77::1/64", "fd77::2/64")}
JOB = Path(__file__).parent / "jobs" / "two_machines.py"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def _make(names: list[str], addresses: Sequence[str]) -> None:
    first, second = names
    for name in names:
        _ip("netns", "add", name)
    _ip("link", "add", first, "netns", first, "type", "veth", "peer", second, "netns", second)
    for name, address in zip(names, addresses, strict=True):
        # An address of IPv6 is tentative for a second otherwise.
        _ip("-n", name, "address", "add", address, "dev", name, *["nodad"] * (":" in address))
        _ip("-n", name, "link", "set", name, "up")
        _ip("-n", name, "link", "set", "lo", "up")


@pytest.fixture
def machines(version) -> Iterator[list[str]]:
    """The names of two machines, and of the interface of each."""
    if not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("needs the programs ip and unshare")
    names = [f"tpu{os.getpid()}{letter}" for letter in "ab"]
    try:
        _make(names, NETWORKS[version])
        yield names
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this process may not make network namespaces: {error.stderr!r}")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _start(
    machine: str, rank: int, folder: Path, version: int, collectives: str
) -> subprocess.Popen[str]:
    # Debian gives a machine's own name to a loopback address.
    hosts = folder / f"hosts{rank}"
    own = f"127.0.0.1 localhost\n127.0.1.1 machine{rank}\n"
    first = NETWORKS[version][0].partition("/")[0]
    hosts.write_text(own + f"{first} machine0\n" * rank)
    job = f"exec '{sys.executable}' '{JOB}'"
    inside = f"mount --bind '{hosts}' /etc/hosts && hostname machine{rank} && {job}"
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "machine0",
        "MASTER_PORT": "29500",
        "OMP_NUM_THREADS": "1",
        "TORCH_TPU_CACHE_DIR": "",
        "TORCH_TPU_TARGET": "v5e:1x1",
        "TORCH_TPU_COLLECTIVES": collectives,
    }
    apart = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return subprocess.Popen(
        ["ip", "netns", "exec", machine, *apart, "sh", "-c", inside],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _next_line(rank: subprocess.Popen[str]) -> str:
    """What a rank says next, without XLA's own transport."""
    while (line := rank.stdout.readline()).startswith("[Gloo]"):
        pass
    return line


@pytest.mark.parametrize(
    ("version", "collectives"),
    [(4, "gloo"), (6, "gloo"), pytest.param(6, "xla", marks=pytest.mark.slow)],
)
def test_ranks_on_two_machines_train_and_all_end_when_the_network_is_cut(
    machines, version, collectives, tmp_path
):
    ranks = [
        _start(machine, rank, tmp_path, version, collectives)
        for rank, machine in enumerate(machines)
    ]
    try:
        said = [[_next_line(rank) for _ in range(2)] for rank in ranks]
        _ip("-n", machines[0], "link", "set", machines[0], "down")
        (host, errors), (other, _) = [rank.communicate(timeout=60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert said == [["[[1.5, 1.5]]\n", "ready\n"]] * 2, errors
    # 1 if a thread was still inside gloo and the process was ended
    assert all(rank.returncode in (1, 3) for rank in ranks), errors
    assert "CollectiveTimeoutError" in host
    # The cut comes before the other rank has shown that it has come to the collective, or after.
    assert "on machine1) has not come to it" in host or "but the data did not arrive" in host
    assert "store of the process group does not answer (DistNetworkError: silent for" in other
    assert "two_machines.py:" in host and "two_machines.py:" in other
