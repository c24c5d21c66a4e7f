# SPDX-License-Identifier: Apache-2.0
"""A rank that is lost, late or out of step ends the others with an error that names it."""

from __future__ import annotations

import pickle
import signal
import time
from pathlib import Path

import pytest

SCRIPT = "lost_rank.py"
FAILED = (1, 3)  # 1 if a thread was still inside XLA and the process was ended


def assert_survivor(outcome, kind: str, *words: str) -> None:
    """The rank ended by itself, with an error of a kind that says certain things."""
    assert outcome.returncode in FAILED, f"{outcome.stdout}\n{outcome.stderr}"
    assert f"ERROR {kind}: " in outcome.stdout
    for word in words:
        assert word in outcome.stdout, f"{word!r} is not in\n{outcome.stdout}"


def assert_left(outcome) -> None:
    """The rank ended by itself, and said so if another one was known to wait for it."""
    said = "CollectiveMismatchError: rank 1 ends, or destroys its process group" in outcome.stderr
    assert outcome.returncode == int(said), outcome.stderr


# XLA runs a small collective inside the launching call and a large one on its own thread.
@pytest.mark.parametrize("elements", ["8", "300000"])
def test_killed_rank_is_named_with_the_pending_collective(run_scripts, elements):
    survivor, killed = run_scripts(SCRIPT, "killed", elements)
    assert killed.returncode == -signal.SIGKILL
    assert_survivor(
        survivor, "PeerLostError", "rank 1", "number 2 of group", "all_reduce", "lost_rank.py:"
    )


def test_rank_that_raises_ends_before_those_that_fail_because_of_it(start_scripts):
    ranks = dict(enumerate(start_scripts(SCRIPT, "raises", "8")))
    ended = []
    while ranks:
        ended += [rank for rank, process in ranks.items() if process.poll() is not None]
        for rank in ended:
            ranks.pop(rank, None)
        time.sleep(0.1)  # as torchrun does, which names the first one as the cause
    assert ended == [1, 0]


@pytest.mark.parametrize("how", ["raises", "raises_and_cleans_up"])
def test_rank_that_raises_is_named_with_its_exception(run_scripts, how):
    survivor, raised = run_scripts(SCRIPT, how, "8")
    assert raised.returncode == 1
    assert_survivor(survivor, "PeerLostError", "rank 1", "ValueError: the loss is not finite")


def test_rank_that_exits_early_is_named(run_scripts):
    survivor, left = run_scripts(SCRIPT, "exits", "8")
    assert_left(left)
    assert_survivor(survivor, "PeerLostError", "rank 1", "is gone: it ended")


def test_late_rank_is_named_with_the_line_it_is_at(run_scripts):
    survivor, _ = run_scripts(SCRIPT, "late", "8")
    assert_survivor(
        survivor, "CollectiveTimeoutError", " Timed out after 10 s", "rank 1", "in sleep_long"
    )


@pytest.mark.parametrize(
    ("way", "what"),
    [
        ("host_message", "recv from group rank 1"),
        pytest.param(
            "host", "all_reduce of CPU tensors, op=sum, float32[8]", marks=pytest.mark.slow
        ),
    ],
)
def test_rank_that_is_late_for_cpu_tensors_is_named_within_the_timeout(run_scripts, way, what):
    survivor, _ = run_scripts(SCRIPT, f"late+{way}", "8")
    words = (what, " Timed out after 10 s", "rank 1", "in sleep_long", "lost_rank.py:")
    assert_survivor(survivor, "CollectiveTimeoutError", *words)


def test_all_survivors_of_three_end(run_scripts):
    first, killed, last = run_scripts(SCRIPT, "killed", "300000", size=3)
    assert killed.returncode == -signal.SIGKILL
    for survivor in (first, last):
        assert_survivor(survivor, "PeerLostError", "number 2 of group")


def test_rank_killed_before_a_group_is_made_is_named(run_scripts):
    survivor, _ = run_scripts(SCRIPT, "new_group", "8", "60")
    assert_survivor(
        survivor, "PeerLostError", "rank 1", "new_group", "killed does", "lost_rank.py:"
    )


@pytest.mark.slow
def test_rank_stopped_before_a_group_is_made_is_named_within_the_timeout(run_scripts):
    survivor, _ = run_scripts(SCRIPT, "new_group+stop", "8", "10", kill_after=1)
    assert_survivor(
        survivor, "CollectiveTimeoutError", "rank 1", "new_group", "is stopped (SIGSTOP"
    )


@pytest.mark.slow
def test_group_that_one_rank_makes_alone_names_what_the_other_waits_in(run_scripts):
    first, second = run_scripts(SCRIPT, "new_group_here", "8", "10")
    assert "ERROR" in first.stdout and "ERROR" in second.stdout
    said = first.stdout + second.stdout  # one of them may find that the other has given up
    assert "waits in all_reduce" in said or "waits in new_group" in said


def test_rank_killed_before_a_barrier_is_named(run_scripts):
    survivor, _ = run_scripts(SCRIPT, "barrier", "8")
    assert_survivor(survivor, "PeerLostError", "rank 1", "barrier")


@pytest.mark.parametrize(
    ("how", "first", "second"),
    [
        ("shape", "float32[8]", "float32[7]"),
        ("dtype", "float32[8]", "int32[8]"),
        ("operation", "op=sum", "op=max"),
        ("skips", "op=min", "op=sum"),
        ("pieces", "(8 bytes to group rank 1, 8 bytes from it)", "(4 bytes to group rank 0, 8 b"),
        ("shape+host", "all_reduce of CPU tensors, op=sum, float32[8]", "float32[7]"),
        pytest.param("dtype+host", "float32[8]", "int32[8]", marks=pytest.mark.slow),
        pytest.param("operation+host", "op=sum", "op=max", marks=pytest.mark.slow),
        pytest.param("skips+host", "op=min", "op=sum", marks=pytest.mark.slow),
        ("short_message", "sends 7 elements of torch.float32", "receives 8 elements"),
        pytest.param(
            "other_message",
            "sends 8 elements of torch.int32",
            "receives 8 elements of torch.float32",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_different_collectives_are_refused_on_all_ranks(run_scripts, how, first, second):
    for outcome in run_scripts(SCRIPT, how, "8"):
        assert_survivor(outcome, "CollectiveMismatchError", first, second, "lost_rank.py:")


def test_rank_that_left_out_one_of_equal_collectives_is_named_with_the_place(run_scripts):
    survivor, ended = run_scripts(SCRIPT, "leaves_out", "8")
    assert_left(ended)
    assert_survivor(survivor, "PeerLostError", "rank 1", "is gone: it ended", "number 8 of group")
    first, second = survivor.stdout.partition("come to number 5 of group")[2].splitlines()[1:3]
    lines = [int(line.rpartition(".py:")[2].split()[0]) for line in (first, second)]
    assert "rank 0: all_reduce" in first and "rank 1: all_reduce" in second
    assert "in reduce_in_turns" in first and lines[0] == lines[1] + 2


def test_nothing_begins_behind_a_collective_that_another_rank_left_out(run_scripts):
    for outcome in run_scripts(SCRIPT, "leaves_out_later", "8"):
        assert_survivor(outcome, "CollectiveMismatchError", "op=min", "op=sum", "in reduce_later")
        assert "reduced" not in outcome.stdout


@pytest.mark.parametrize("way", ["later", "future"])
@pytest.mark.parametrize(
    ("how", "kind", "word"),
    [
        ("killed", "PeerLostError", "rank 1"),
        ("stopped", "CollectiveTimeoutError", "is stopped (SIGSTOP"),
        ("shape", "CollectiveMismatchError", "float32[7]"),
        ("skips", "CollectiveMismatchError", "op=min"),
    ],
)
def test_asynchronous_reduction_without_a_rank_fails_as_a_synchronous_one(
    run_scripts, way, how, kind, word
):
    first, _ = run_scripts(SCRIPT, f"{how}+{way}", "8", "10", kill_after=1)
    assert_survivor(first, kind, word, "number 2 of group", "lost_rank.py:")


def test_stopped_rank_is_named_within_the_timeout(run_scripts):
    survivor, stopped = run_scripts(SCRIPT, "stopped", "8", "20", kill_after=1)
    assert stopped.returncode == -signal.SIGKILL
    assert_survivor(
        survivor, "CollectiveTimeoutError", "after 20 s", "rank 1", "is stopped (SIGSTOP"
    )


def test_barrier_with_a_timeout_of_its_own_ends_in_that_time(run_scripts):
    survivor, _ = run_scripts(SCRIPT, "late_barrier", "8", "60")
    words = ("barrier, number 2", " Timed out after 1 s", "rank 1", "in wait_for_timeout")
    assert_survivor(survivor, "CollectiveTimeoutError", *words)


@pytest.mark.parametrize("how", ["unwaited", "unwaited_late"])
def test_reduction_nobody_waits_for_that_another_rank_leaves_out_is_reported(run_scripts, how):
    outcomes = run_scripts(SCRIPT, how, "8")
    assert_survivor(outcomes[0], "PeerLostError", "rank 1", "number 2 of group", "in leave_early")
    assert_survivor(
        outcomes[1], "CollectiveMismatchError", "rank 1 ends, or destroys", "in leave_early"
    )


def test_group_can_be_destroyed_after_its_asynchronous_collectives_have_failed(run_scripts):
    survivor, other = run_scripts(SCRIPT, "destroys", "8", timeout_s=60)
    assert other.returncode == 0, other.stderr
    assert_survivor(survivor, "CollectiveTimeoutError", "rank 1", "in destroy_after_failure")


def test_rank_that_sigterm_ends_says_what_it_waits_in(run_scripts):
    survivor, stopped = run_scripts(SCRIPT, "terminated", "8", kill_after=1)
    assert survivor.returncode == -signal.SIGTERM and stopped.returncode == -signal.SIGKILL
    assert "rank 0 is ended by SIGTERM and waits in all_reduce" in survivor.stderr
    assert "number 2 of group" in survivor.stderr and "is stopped (SIGSTOP" in survivor.stderr


def test_rank_in_another_group_is_named_with_what_it_waits_in(run_scripts):
    first, _ = run_scripts(SCRIPT, "group", "8", "20")
    waits = "rank 1 waits for rank 0 in all_reduce op=sum of float32[1]"
    assert_survivor(first, "CollectiveMismatchError", waits, "in print_alone")


@pytest.mark.parametrize("rank", [0, 1])  # rank 0 takes the store with it
def test_lost_rank_is_named_with_what_it_called_in_another_group(run_scripts, rank):
    survivor = run_scripts(SCRIPT, f"group_of_{rank}", "8")[1 - rank]
    begun = f"Rank {rank} has called what this rank has not come to: all_reduce op=min"
    assert_survivor(survivor, "PeerLostError", begun, "in go_on_in_other_group, number 2 of group")


def test_ranks_that_wait_in_different_calls_are_both_told_of_both(run_scripts):
    for outcome in run_scripts(SCRIPT, "apart", "8"):
        assert "ERROR CollectiveTimeoutError" in outcome.stdout, outcome.stdout
        assert "barrier, number 2 of group" in outcome.stdout
        assert "recv from group rank 1, group" in outcome.stdout
        assert " it is at:" in outcome.stdout


def test_interrupted_rank_ends_the_others(run_scripts):
    survivor, interrupted = run_scripts(SCRIPT, "interrupted", "8")
    assert interrupted.returncode != 0
    assert_survivor(survivor, "PeerLostError", "rank 1", "KeyboardInterrupt")


def test_rank_killed_before_a_message_is_named(run_scripts):
    survivor, _ = run_scripts(SCRIPT, "message", "8")
    assert_survivor(survivor, "PeerLostError", "rank 1", "recv from group rank 1")


def test_rank_that_takes_too_few_messages_is_named_with_its_last_call(run_scripts):
    survivor, left = run_scripts(SCRIPT, "messages", "8")
    assert left.returncode == 0
    called = "The last one it has called was recv from group rank 0"
    assert_survivor(survivor, "PeerLostError", "send to group rank 1", called, "lost_rank.py:")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("backward", ["all_reduce", "in train_once"]),
        ("checkpoint", ["of CPU tensors", "in save_checkpoint"]),
    ],
)
def test_rank_killed_in_a_phase_of_training_is_named(run_scripts, how, words):
    survivor, _ = run_scripts(SCRIPT, how, "8")
    assert_survivor(survivor, "PeerLostError", "rank 1", *words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("barrier", ["barrier"]),
        ("backward", ["all_reduce", "in train_once"]),
        ("checkpoint", ["CPU tensors", "in save_checkpoint"]),
    ],
)
def test_rank_stopped_in_a_phase_of_training_is_named_within_the_timeout(run_scripts, how, words):
    survivor, stopped = run_scripts(SCRIPT, f"{how}+stop", "8", "20", kill_after=1)
    assert stopped.returncode == -signal.SIGKILL
    assert_survivor(survivor, "CollectiveTimeoutError", "rank 1", "is stopped (SIGSTOP", *words)


@pytest.mark.slow
def test_lost_store_ends_the_other_ranks(run_scripts):
    killed, *survivors = run_scripts(SCRIPT, "store", "8", size=3)
    assert killed.returncode == -signal.SIGKILL
    for survivor in survivors:
        assert_survivor(survivor, "PeerLostError", "rank 0", "is gone")


@pytest.mark.slow
@pytest.mark.parametrize(("how", "kill_after"), [("in_init", None), ("in_init+stop", 1)])
def test_rank_lost_while_the_group_is_made_is_named(run_scripts, how, kill_after):
    waiting, lost = run_scripts(SCRIPT, how, "8", "10", kill_after=kill_after)
    assert lost.returncode == -signal.SIGKILL
    assert_survivor(waiting, "PeerLostError", "rank(s) 1 of 2 did not come")


@pytest.mark.parametrize(
    ("how", "kill_after", "words"),
    [
        ("in_join", None, "has ended"),
        pytest.param("in_join+stop", 1, "is stopped (SIGSTOP", marks=pytest.mark.slow),
    ],
)
def test_rank_lost_before_xla_connects_the_ranks_is_named(run_scripts, how, kill_after, words):
    by_xla = {"TORCH_TPU_COLLECTIVES": "xla"}
    waiting, _ = run_scripts(SCRIPT, how, "8", "10", kill_after=kill_after, environment=by_xla)
    assert_survivor(waiting, "PeerLostError", "could not be connected", "rank 1", words)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before_init", "before_init+stop"])
def test_rank_missing_at_the_start_ends_the_others(run_scripts, how):
    waiting, _ = run_scripts(SCRIPT, how, "8", "10", kill_after=1)
    assert waiting.returncode == 3
    assert "1/2 clients joined" in waiting.stdout


def test_flight_recorder_is_written_after_a_failure(run_scripts, tmp_path):
    prefix = str(tmp_path / "trace_")
    run_scripts(SCRIPT, "shape", "8", environment={"TORCH_FR_DUMP_TEMP_FILE": prefix})
    for rank, elements in enumerate([8, 7]):
        last = pickle.loads(Path(f"{prefix}{rank}").read_bytes())["entries"][-1]
        assert last["collective_seq_id"] == 2 and last["input_sizes"] == [[elements]]
        assert last["state"] != "completed" and last["frames"][0]["name"] == "second_call"


@pytest.mark.parametrize(
    ("where", "word"),
    [
        ("init", "rank 0 of 2 is in init_process_group"),
        pytest.param("group", "new_group", marks=pytest.mark.slow),
        pytest.param("reduction", "all_reduce", marks=pytest.mark.slow),
    ],
)
def test_store_that_dies_alone_is_named_by_a_rank_that_waits(run_scripts, where, word):
    survivor, _, store = run_scripts("lost_store.py", where, size=3, kill_after=1)
    assert store.returncode == -signal.SIGKILL
    assert_survivor(survivor, "CollectiveError", "store of the process group", word)


@pytest.mark.parametrize(
    ("where", "word"),
    [
        pytest.param("init", "rank 0 of 2 is in init_process_group", marks=pytest.mark.slow),
        pytest.param("group", "new_group", marks=pytest.mark.slow),
        ("reduction", "all_reduce"),
    ],
)
def test_store_that_is_stopped_does_not_keep_a_rank_that_waits(run_scripts, where, word):
    limit = {"TORCH_TPU_COLLECTIVE_TIMEOUT_S": "5"}
    survivor, _, _ = run_scripts(
        "lost_store.py", where, "stop", size=3, kill_after=1, environment=limit
    )
    assert_survivor(survivor, "CollectiveError", "does not answer (DistNetworkError: silent", word)


def test_rank_that_is_stopped_beside_a_lost_store_is_not_named_as_the_cause(run_scripts):
    survivor, _, _ = run_scripts(
        "lost_store.py", "reduction", "kill_beside_stopped", size=3, kill_after=1
    )
    lost = "The store of the process group does not answer (Dist"
    words = (lost, "has ended, or the network", "Besides, rank 1", "is stopped", "all_reduce")
    assert_survivor(survivor, "CollectiveError", *words)
