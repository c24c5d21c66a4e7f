# SPDX-License-Identifier: Apache-2.0
"""Ranks that make groups of one name and other ranks are told, with their device meshes."""

from __future__ import annotations

import pytest
import torch.distributed.device_mesh
from torch import distributed as dist
from torchtpu_distributed import members


def test_group_of_the_same_ranks_is_no_difference():
    store = dist.HashStore()
    for rank in range(2):
        assert members.difference(store, rank, "1", (0, 1), "ranks 0, 1") is None


def test_group_of_other_ranks_is_said_with_what_each_rank_makes():
    store = dist.HashStore()
    members.difference(store, 0, "1", (0, 1), "ranks 0, 1")
    said = members.difference(store, 1, "1", (1,), "rank 1")
    assert said is not None
    assert "group '1', differs" in said
    assert "rank 1: rank 1\n" in said and "rank 0: ranks 0, 1\n" in said


def test_groups_of_one_of_the_same_name_are_no_difference():
    store = dist.HashStore()
    for rank in range(3):
        assert members.difference(store, rank, "1", (rank,), f"rank {rank}") is None
    said = members.difference(store, 3, "1", (3, 4), "ranks 3, 4")
    assert said is not None and "rank 0: rank 0\n" in said


def test_purpose_of_a_group_lists_the_first_of_many_ranks():
    assert members.purpose((3,)) == "rank 3"
    assert members.purpose(tuple(range(9))) == "ranks 0, 1, 2, 3, 4, 5, 6, 7, ..."


def test_purpose_of_a_group_of_a_mesh_names_axis_and_shape(monkeypatch):
    purposes = []
    real = torch.distributed.device_mesh.new_group

    def new_group(ranks, **options):
        purposes.append(members.purpose(ranks))
        return real(ranks, **options)

    monkeypatch.setattr(torch.distributed.device_mesh, "new_group", new_group)
    dist.init_process_group("fake", rank=0, world_size=4, store=dist.HashStore())
    try:
        dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    finally:
        dist.destroy_process_group()
    assert purposes[0] == "ranks 0, 2, axis 'data' of a device mesh of shape (2, 2)"
    assert purposes[2] == "ranks 0, 1, axis 'model' of a device mesh of shape (2, 2)"


@pytest.mark.slow
def test_ranks_whose_device_meshes_differ_end_and_one_says_how(run_scripts):
    ended = run_scripts("device_meshes.py", size=4)
    said = "\n".join(rank.stdout + rank.stderr for rank in ended)
    assert all(rank.returncode for rank in ended)
    assert "CollectiveMismatchError: new_group, group '1', differs between ranks" in said
    assert "rank 0: rank 0, axis 'tp' of a device mesh of shape (4, 1)" in said
    assert "rank 2: ranks 0, 2, axis 'dp' of a device mesh of shape (2, 2)" in said


@pytest.mark.slow
def test_rank_whose_device_mesh_makes_no_group_is_told_of_in_the_timeout(run_scripts):
    ended = run_scripts("device_meshes.py", "flat", size=4)
    said = "\n".join(rank.stdout + rank.stderr for rank in ended)
    assert all(rank.returncode for rank in ended)
    assert "of a device mesh of shape (2, 2), group '1'" in said
    assert "it never will if its device mesh has another shape" in said
