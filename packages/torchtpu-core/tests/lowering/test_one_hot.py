# SPDX-License-Identifier: Apache-2.0
"""One-hot rows and what is refused of their classes."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import one_hot


@pytest.mark.parametrize("classes", [[[1, 0], [3, 2]], 2, [0]])
@pytest.mark.parametrize("count", [-1, 5])
def test_one_hot_rows_match_cpu(classes: object, count: int) -> None:
    expected = one_hot(torch.tensor(classes), count)
    actual = one_hot(torch.tensor(classes, device="tpu"), count)
    assert actual.dtype == expected.dtype
    assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("classes", "count"), [([-1, 2], -1), ([-1, 2], 4), ([1, 2], 2), ([1.0], -1), ([1], -3)]
)
def test_one_hot_refuses_what_cpu_refuses_in_its_words(classes: object, count: int) -> None:
    with pytest.raises(RuntimeError) as refused:
        one_hot(torch.tensor(classes), count)
    words = str(refused.value) if count != -3 else "num_classes should be positive"
    with pytest.raises(RuntimeError, match=words.partition(".")[0]):
        one_hot(torch.tensor(classes, device="tpu"), count)
        torch.tpu.synchronize()


def test_one_hot_rows_of_transposed_classes_can_be_viewed_flat() -> None:
    classes = torch.tensor([[1, 0, 2], [3, 2, 1]])
    expected = one_hot(classes.t(), 4).view(-1, 4)
    assert torch.equal(one_hot(classes.to("tpu").t(), 4).view(-1, 4).cpu(), expected)


def test_one_hot_of_no_classes_takes_their_number() -> None:
    empty = torch.empty(0, dtype=torch.int64, device="tpu")
    assert one_hot(empty, 3).shape == (0, 3)
    with pytest.raises(RuntimeError, match="Can not infer total number of classes"):
        one_hot(empty)


def test_one_hot_of_given_classes_does_not_wait_for_the_device() -> None:
    torch.tpu.synchronize()
    before = torch.tpu.counters()["flushes"].get("host read", 0)
    rows = one_hot(torch.arange(4, device="tpu"), 4)
    assert torch.tpu.counters()["flushes"].get("host read", 0) == before
    assert rows.tolist() == torch.eye(4, dtype=torch.int64).tolist()
