# SPDX-License-Identifier: Apache-2.0
"""`torchtpu run`: which slice and how many launchers, and a script that runs."""

from __future__ import annotations

import itertools
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.launcher.api import _get_entrypoint_name
from torch.distributed.run import config_from_args, parse_args
from torchtpu_core.errors import TargetError
from torchtpu_distributed import bound, launch

SLOW = pytest.mark.slow
REDUCE = Path(__file__).parent / "jobs" / "reduce_once.py"


@pytest.mark.parametrize(
    ("chips", "target", "expected"),
    [
        (1, None, ("v5e:1x1", 1, 1)),
        (3, None, ("v5e:2x2", 1, 3)),
        (8, None, ("v5e:2x4", 1, 8)),
        (16, None, ("v5e:4x4", 4, 4)),
        (8, "v5p:2x2x2", ("v5p:2x2x2", 2, 4)),
        (2, "cpu", ("cpu", 2, 1)),
    ],
)
def test_plan_fills_the_hosts_of_a_slice(chips, target, expected):
    found = launch.plan(chips, target)
    assert (found.target, found.hosts, found.per_host) == expected


@pytest.mark.parametrize(
    ("chips", "target", "words"),
    [
        (0, None, "--chips 1"),
        (5, "v5e:2x2", "has 4 devices"),
        (6, "v5e:4x4", "multiple of 4"),
        (2, "tpu", "torchrun"),
        (1000, None, "no v5e slice"),
    ],
)
def test_plan_that_does_not_fit_says_what_would(chips, target, words):
    with pytest.raises(TargetError, match=words):
        launch.plan(chips, target)


def test_hosts_meet_at_one_address():
    chosen = launch.Plan(target="v5e:4x4", hosts=2, per_host=4)
    first, second = launch.commands(chosen, ["train.py", "--lr", "1"], restarts=3, module=False)
    assert first == second
    assert first[first.index("--no-python") + 1 : -3][-2:] == [sys.executable, "-u"]
    assert first[-3:] == ["train.py", "--lr", "1"]
    assert first[first.index("--nnodes") + 1] == "2"
    assert first[first.index("--max-restarts") + 1] == "3"


@pytest.mark.parametrize("module", [False, True])
def test_torchrun_calls_the_ranks_by_the_script(module):
    chosen = launch.plan(2, None)
    (command,) = launch.commands(chosen, ["train.py", "--lr", "1"], restarts=0, module=module)
    config, entry, words = config_from_args(parse_args(command[3:]))
    assert config.nproc_per_node == 2
    assert _get_entrypoint_name(entry, words) == "train.py"


def torchtpu(*words: str) -> list[str]:
    """The command line of `torchtpu run` on two chips."""
    command = [sys.executable, "-c", "from torchtpu_core.cli.app import main; main()", "run"]
    return [*command, "--chips", "2", str(REDUCE), *words]


def started(command: list[str], **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env={**os.environ, "TORCH_TPU_CACHE_DIR": "", "TORCH_TPU_TARGET": "v5e:2x2"},
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def ranks_that_wait(process: subprocess.Popen[str]) -> list[int]:
    """The processes of the two ranks, as soon as they wait for what never comes."""
    assert process.stdout is not None
    lines = (line for line in process.stdout if line.startswith("rank"))
    return [int(line.split()[-1]) for line in itertools.islice(lines, 2)]


def assert_end(pids: dict[int, int]) -> None:
    """Processes, given by their descriptors, end within a minute."""
    waiting = set(pids)
    while waiting:
        ended, _, _ = select.select(waiting, [], [], 60)
        assert ended, f"processes {[pids[each] for each in waiting]} are left behind"
        waiting -= set(ended)
    for descriptor in pids:
        os.close(descriptor)


def parent_of(pid: int) -> int:
    """The process that started another one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_run_starts_one_rank_per_chip():
    out, _ = (process := started(torchtpu("reduce"))).communicate(timeout=120)
    assert process.returncode == 0
    said = [line for line in out.splitlines() if line.startswith("rank")]  # gloo talks too
    assert sorted(said) == [
        "rank 0 of 2 on v5e:2x2: 3.0",
        "rank 1 of 2 on v5e:2x2: 3.0",
    ]


def kill(process: subprocess.Popen[str], _ranks: list[int]) -> None:
    """What was started."""
    process.kill()


def kill_launcher(_process: subprocess.Popen[str], ranks: list[int]) -> None:
    """The torchrun beneath."""
    os.kill(parent_of(ranks[0]), signal.SIGKILL)


def stop_rank_and_kill(process: subprocess.Popen[str], ranks: list[int]) -> None:
    """A stopped rank does not look after itself."""
    os.kill(ranks[1], signal.SIGSTOP)
    process.kill()


def hang_up(process: subprocess.Popen[str], _ranks: list[int]) -> None:
    """What the kernel sends when a terminal is closed."""
    process.send_signal(signal.SIGHUP)


@pytest.mark.skipif(not bound.IS_POSSIBLE, reason="only Linux ends processes with their parent")
@pytest.mark.parametrize(
    "fault",
    [kill, *(pytest.param(f, marks=SLOW) for f in (kill_launcher, stop_rank_and_kill, hang_up))],
)
def test_no_rank_of_a_run_outlives_its_launchers(fault: Callable[..., None]):
    process = started(torchtpu("wait"))
    ranks = ranks_that_wait(process)
    descriptors = {os.pidfd_open(pid): pid for pid in (*ranks, parent_of(ranks[0]))}
    fault(process, ranks)
    assert_end(descriptors)
    process.communicate(timeout=120)
    assert process.returncode != 0


@pytest.mark.skipif(not bound.IS_POSSIBLE, reason="only Linux ends processes with their parent")
@pytest.mark.parametrize(("action", "expected"), [("SIG_IGN", 9), ("SIG_DFL", 2)])
def test_signal_for_the_end_of_the_parent_is_one_that_the_rank_does_not_ignore(action, expected):
    lines = (
        "import bound, ctypes, signal",
        "bound.end_with_parent(signal.SIGINT)  # as torch.multiprocessing.spawn does",
        f"signal.signal(signal.SIGINT, signal.{action})",
        "bound.end_with_parent_after_all()",
        "ctypes.CDLL(None).prctl(2, ctypes.byref(number := ctypes.c_int()))",
        "print(number.value)",
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", "\n".join(lines)],
        cwd=Path(bound.__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == expected


@SLOW
@pytest.mark.skipif(not bound.IS_POSSIBLE, reason="only Linux ends processes with their parent")
def test_no_rank_outlives_a_torchrun_that_is_killed():
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    process = started([*launcher, str(REDUCE), "wait"])
    ranks = {os.pidfd_open(pid): pid for pid in ranks_that_wait(process)}
    process.kill()
    assert_end(ranks)
    process.communicate(timeout=120)


@pytest.mark.parametrize("presses", [1, pytest.param(2, marks=SLOW)])
def test_ctrl_c_at_a_terminal_ends_every_rank_of_a_run(presses):
    def take_terminal() -> None:
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # the first one opened is the controlling one

    terminal, program = pty.openpty()
    process = started(torchtpu("wait"), stdin=program, preexec_fn=take_terminal)
    ranks = {os.pidfd_open(pid): pid for pid in ranks_that_wait(process)}
    os.write(terminal, b"\x03" * presses)
    assert_end(ranks)
    process.communicate(timeout=120)
    assert process.returncode != 0
    os.close(terminal)
    os.close(program)
