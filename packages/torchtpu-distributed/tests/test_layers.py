# SPDX-License-Identifier: Apache-2.0
"""Ranks compare for which module FSDP2 calls a collective, and messages name it."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("fixture", ["pair", "xla_pair"])
def test_recorder_names_the_modules_of_collectives_in_their_order(request, fixture):
    for said in request.getfixturevalue(fixture)("layers.modules_of_collectives"):
        ranges = [what.partition(" in FSDP::")[2] for what in said]
        gathers = [f"all_gather (layers.{n})" for n in (0, 2, 1)]
        reductions = [f"post_backward_reduce (layers.{n})" for n in (1, 2, 0)]
        assert ranges[:3] == gathers
        assert [name for name in ranges if name in reductions] == reductions
        assert set(ranges[:-1]) == {*gathers, *reductions}
        assert ranges[-1] == "", "a range that the user named"


@pytest.mark.parametrize("transport", ["auto", "xla"])
def test_layers_in_another_order_on_one_rank_are_named(run_scripts, transport):
    outcomes = run_scripts("layers.py", environment={"TORCH_TPU_COLLECTIVES": transport})
    assert [outcome.returncode for outcome in outcomes] in ([3, 3], [3, 1], [1, 3])
    for outcome in outcomes:
        for rank, layer in enumerate((1, 2)):
            called = f"all_gather of float32[10] in FSDP::all_gather (layers.{layer}) at "
            assert f"rank {rank}: {called}" in outcome.stdout
        assert "layers.py:" in outcome.stdout and "in forward" in outcome.stdout
