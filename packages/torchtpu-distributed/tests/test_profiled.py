# SPDX-License-Identifier: Apache-2.0
"""A profile names collectives, and says of them what trace analysers read."""

from __future__ import annotations

import pytest

# Name of the range, operation as analysers know it, elements in and out.
CALLS = [
    ("all_reduce", "allreduce", 3, 3),
    ("all_gather_into_tensor", "_allgather_base", 3, 6),
    ("reduce_scatter_tensor", "_reduce_scatter_base", 6, 3),
    ("all_reduce", "allreduce", 8, 8),  # DDP's gradients
]
MESSAGES = [("send", "send", 3, 0), ("recv", "recv", 0, 3)]


@pytest.mark.parametrize(
    ("fixture", "backend"), [("pair", "tpu_dist"), ("late_pair", "tpu"), ("xla_pair", "tpu_dist")]
)
def test_profile_shows_collectives_and_messages(request, fixture, backend):
    for rank, events in enumerate(request.getfixturevalue(fixture)("profiled.events")):
        expected = [*CALLS, MESSAGES[rank], ("barrier", "barrier", 0, 0)]
        assert [name for name, _ in events[::2]] == [f"{backend}:{call[0]}" for call in expected]
        for (name, found), (_, operation, into, out) in zip(events[1::2], expected, strict=True):
            assert name == "record_param_comms" and found["Collective name"] == operation
            assert (found["In msg nelems"], found["Out msg nelems"]) == (into, out)
            assert found["Group size"] == 2 and found["Rank"] == rank
            assert found["dtype"] == ("Byte" if operation == "barrier" else "Float")


@pytest.mark.parametrize("fixture", ["pair", "xla_pair"])
def test_profile_of_collectives_has_shapes_and_is_asynchronous(request, fixture):
    for found in request.getfixturevalue(fixture)("profiled.ranges"):
        assert found == [
            ("tpu_dist:all_reduce", True, [[2, 3]]),
            ("tpu_dist:all_gather_into_tensor", True, [[2, 3]]),
            ("tpu_dist:all_to_all_single", True, [[4, 3]]),
        ]
