# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs that read parts of storages whose size varies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

LENGTHS = (7, 5, 9, 12, 8, 6, 15, 11)


def tokens(length: int) -> Tensor:
    return torch.randn(2, length, 3)


def test_last_token_of_a_growing_sequence_has_one_program(compiles: Callable[[], int]) -> None:
    function = torch.compile(lambda x: x.softmax(-1) * 2, backend="tpu", dynamic=True)
    sequences = [tokens(n) for n in LENGTHS]
    on_tpu = [x.to("tpu") for x in sequences]
    before = compiles()
    for x, y in zip(sequences, on_tpu, strict=True):
        torch.testing.assert_close(function(y[:, -1]).cpu(), x[:, -1].softmax(-1) * 2)
    # Two storages have programs of their own before the parts are known to come from many.
    assert compiles() - before <= 3


def test_two_parts_of_a_storage_beside_a_number_and_a_written_part(
    compiles: Callable[[], int],
) -> None:
    def step(a: Tensor, b: Tensor, into: Tensor, rate: Tensor) -> Tensor:
        into.add_(a * rate)
        return a - b.mT * rate

    function = torch.compile(step, backend="tpu")
    compiled = 0
    for n in LENGTHS[:4]:
        x, y, rate = tokens(n), tokens(4), torch.tensor(n / 8)
        on_tpu, into = x.to("tpu"), y.to("tpu")
        operands = on_tpu[0, 1:3], on_tpu[1, -3:, :2], into[0, n % 3 : n % 3 + 2]
        before = compiles()
        actual = function(*operands, rate)
        compiled += compiles() - before
        expected = step(x[0, 1:3], x[1, -3:, :2], y[0, n % 3 : n % 3 + 2], rate)
        torch.testing.assert_close(actual.cpu(), expected)
        torch.testing.assert_close(into.cpu(), y)
    assert compiled <= 3


def test_dynamo_stays_out_of_calls_of_parts_between_two_graphs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def function(shape: tuple[int, int]) -> Tensor:
        t = torch.randn(shape, dtype=torch.complex64, device="tpu")
        t = torch.where(t.abs() > 1, t, 0)
        print(t)  # breaks the graph; the ops of its text run between two graphs
        return t

    compiled = torch.compile(function, backend="tpu")
    for columns in (3, 4, 5, 6):
        found = []
        for call in (compiled, function):
            torch.manual_seed(columns)
            found.append((call((columns, 4)).cpu(), capsys.readouterr().out))
        assert torch.equal(found[0][0], found[1][0]) and found[0][1] == found[1][1]
