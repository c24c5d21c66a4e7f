# SPDX-License-Identifier: Apache-2.0
"""Messages of a rank to itself, which gloo does not carry, and mistakes within a batch."""

from __future__ import annotations

import re

import pytest
import torch

EACH = [torch.arange(12.0).view(4, 3) + 100 * rank for rank in range(2)]


@pytest.mark.parametrize("device", ["tpu", "cpu"])
@pytest.mark.parametrize("fixture", ["pair", "xla_pair"])
def test_a_rank_receives_what_it_sends_itself(request, fixture, device):
    ranks = request.getfixturevalue(fixture)
    for mine, found in zip(EACH, ranks("own_messages.exchanged", device, each=EACH), strict=True):
        for number, more in enumerate((0, 2, 1, 3, 4, 5)):
            assert torch.equal(found[number], mine + more)


def test_collectives_after_a_batch_with_a_mistake_are_carried_out(pair):
    found = pair("own_messages.after_a_mistake", each=EACH)
    for rank, (said, received, total) in enumerate(found):
        assert "the group has no rank 2" in said
        assert torch.equal(received, EACH[1 - rank]) and torch.equal(total, EACH[0] + EACH[1])


@pytest.mark.parametrize("device", ["tpu", "cpu"])
@pytest.mark.parametrize("way", ["wait", "ask", "drop"])
def test_a_message_of_another_size_is_refused_and_the_job_goes_on(pair, device, way):
    expected = "" if way == "drop" else "a message of 12 bytes .* of 16 bytes"
    for said, total in pair("own_messages.misfit", device, way):
        assert re.search(expected, said), said
        assert total == 2


@pytest.mark.parametrize("device", ["tpu", "cpu"])
def test_a_receive_from_any_rank_sees_messages_of_oneself(pair, device):
    for rank, (results, sources, said) in enumerate(pair("own_messages.from_any", device)):
        assert [r.unique().tolist() for r in results] == [[rank], [rank], [1 - rank], [rank]]
        assert sources == [rank, 0, 1 - rank]
        assert "while it receives from any rank" in said


@pytest.mark.parametrize("device", ["tpu", "cpu"])
def test_a_message_into_another_shape_arrives_with_a_warning_at_the_later_end(pair, device):
    (values, noted), (_, early) = pair("own_messages.reshaped", device)
    assert values == list(range(8)) and early == []
    (said,) = noted
    assert re.search(
        r"rank 0 receives 8 elements of torch.float32, shape \[8\] at \S*own_mess", said
    )
    assert re.search(
        r"rank 1 sends 8 elements of torch.float32, shape \[2, 4\] at \S*own_mess", said
    )


@pytest.mark.parametrize("device", ["tpu", "cpu"])
def test_a_message_into_a_shape_with_another_dimension_of_one_arrives_without_a_warning(
    pair, device
):
    (values, late), (_, early) = pair("own_messages.one_more_dimension", device)
    assert values == [0.0, *range(6)]
    assert late == [] and early == []
