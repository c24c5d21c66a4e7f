# SPDX-License-Identifier: Apache-2.0
"""Which streams of ops get a program of their own: those that are likely to come again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torchtpu_core import _C
from torchtpu_core.runtime import background, varying

OPS: list[Callable[[Tensor], Tensor]] = [torch.tanh, torch.sin]
LENGTH = 64  # ops of a stream
KINDS = 32
CREDIT = 1024  # ops of programs that have not paid yet


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The ops of each program that is asked for in Fused Eager."""
    counts: list[int] = []
    make_later = background.make_later

    def note(request: Callable[[], None], op_count: int, *, urgent: bool) -> None:
        counts.append(op_count)
        make_later(request, op_count, urgent=urgent)

    torch.tpu.init()
    torch.tpu.wait_for_compiles()
    varying.forget()
    _C.forget_streams()
    with torch.tpu.set_eager_mode("fused"), monkeypatch.context() as patch:
        patch.setattr(background, "make_later", note)
        yield counts
    _C.forget_streams()
    _C.clear_programs()


@pytest.fixture
def none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "compile_now", lambda *_: None)


def _stream(kind: int, x: Tensor) -> Tensor:
    """Ops in an order that no other kind has; each test has kinds of its own, new on disk."""
    order = random.Random(kind)
    for _ in range(LENGTH):
        x = order.choice(OPS)(x)
    return x


def _run(kinds: list[int]) -> None:
    x = torch.linspace(-1, 1, 4).to("tpu")
    for kind in kinds:
        result = _stream(kind, x)
        torch.tpu.synchronize()
        torch.tpu.wait_for_compiles()
    torch.testing.assert_close(result.cpu(), _stream(kinds[-1], x.cpu()))


def test_streams_that_alternate_ask_once_they_come_again(asked: list[int]) -> None:
    _run([100, 101] * 3)
    assert asked == [LENGTH] * 2


@pytest.mark.usefixtures("none_is_made")
def test_a_stream_is_asked_for_while_the_program_of_another_is_made(asked: list[int]) -> None:
    x = torch.linspace(-1, 1, 4).to("tpu")
    for _ in range(4):
        _stream(150, x)
        torch.tpu.synchronize()
        _stream(151, torch.tanh(x))
        torch.tpu.synchronize()
    assert sorted(asked) == [LENGTH, LENGTH + 1]


def test_streams_that_take_turns_with_a_few_others_ask_too(asked: list[int]) -> None:
    few = list(range(200, 208))
    _run(few * 2)
    assert asked == []
    _run(few * 4)
    assert asked == [LENGTH] * 8


@pytest.mark.usefixtures("none_is_made")
def test_others_ask_after_four_rounds_while_there_is_credit(asked: list[int]) -> None:
    many = list(range(300, 300 + KINDS))
    _run(many * 4)
    assert asked == []
    _run(many * 8)
    assert CREDIT <= sum(asked) < CREDIT + LENGTH


@pytest.mark.usefixtures("none_is_made")
def test_streams_by_chance_ask_for_few_programs(asked: list[int]) -> None:
    chance = random.Random(0)
    _run([chance.randrange(KINDS) for _ in range(8 * KINDS)])
    assert asked == []  # each came some eight times, few when they were foretold
    _run([chance.randrange(KINDS) for _ in range(16 * KINDS)])
    assert CREDIT <= sum(asked) <= CREDIT + 4 * LENGTH


def test_urgent_programs_are_made_first_and_then_small_ones() -> None:
    worker, may_go = background._Worker(), threading.Event()
    made: list[str] = []
    worker.submit(may_go.wait, 9, urgent=True)
    for name, op_count in (("large", 300), ("small", 3), ("next", 3), ("urgent", 30)):
        worker.submit(lambda name=name: made.append(name), op_count, urgent=name == "urgent")
    assert worker.under_way() == 5
    may_go.set()
    worker.wait()
    assert made == ["urgent", "small", "next", "large"]
    assert worker.under_way() == 0


def test_the_thread_rests_after_a_program_unless_somebody_waits_or_one_is_urgent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "_REST", 1e5)
    worker, done = background._Worker(), threading.Event()
    made: list[str] = []

    def slow() -> None:
        time.sleep(0.01)
        made.append("first")

    worker.submit(slow, 3, urgent=False)
    worker.wait()
    worker.submit(lambda: made.append("late"), 3, urgent=False)
    worker.submit(done.set, 3, urgent=True)
    assert done.wait(10)
    assert made == ["first"]
    worker.wait()
    assert made == ["first", "late"]


def _ends_with(worker: background._Worker, *queued: tuple[str, int, bool]) -> list[str]:
    """What of these programs is made, the first one under way, when the process ends."""
    may_go = threading.Event()
    made: list[str] = []
    worker.submit(may_go.wait, 1, urgent=True)
    for name, op_count, urgent in queued:
        worker.submit(lambda name=name: made.append(name), op_count, urgent=urgent)
    threading.Timer(0.05, may_go.set).start()
    worker.stop()
    assert worker.under_way() == 0
    return made


@pytest.fixture
def _kept_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background.caching.ProgramCache, "enabled", True)


@pytest.mark.usefixtures("_kept_on_disk")
def test_what_is_soon_made_is_made_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_LAST_SHARE", 1e5)
    monkeypatch.setattr(background.programs, "found_at_once", 0)
    queued = (("regular", 30, True), ("small", 3, False), ("large", 10**6, False))
    assert _ends_with(background._Worker(), *queued) == ["regular", "small"]


@pytest.mark.usefixtures("_kept_on_disk")
def test_nothing_more_is_made_at_the_end_of_a_script_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "_LAST_SHARE", 1e5)
    monkeypatch.setattr(background.sys, "last_value", ValueError(), raising=False)
    assert _ends_with(background._Worker(), ("late", 3, True)) == []


def test_without_a_cache_what_is_queued_is_dropped_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "_LAST_SHARE", 1e5)
    monkeypatch.setattr(background.caching.ProgramCache, "enabled", False)
    assert _ends_with(background._Worker(), ("late", 3, True)) == []


@pytest.mark.usefixtures("_kept_on_disk")
def test_a_process_that_found_its_programs_has_time_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "_LAST_SHARE", 1e5)
    monkeypatch.setattr(background.programs, "found_at_once", 2)
    queued = (("optional", 3, False), ("urgent", 3, True))
    assert _ends_with(background._Worker(), *queued) == ["urgent"]
    monkeypatch.setattr(background.programs, "found_at_once", 0)
    assert _ends_with(background._Worker(), *queued) == ["urgent", "optional"]
