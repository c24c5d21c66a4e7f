# SPDX-License-Identifier: Apache-2.0
"""`split_group` of default groups that have a backend of gloo."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("name", ["tpu:tpu_dist,cpu:gloo", "cpu:gloo,tpu:tpu_dist"])
def test_parts_of_a_group_with_gloo_reduce_tensors_of_both_devices(run_scripts, name):
    for rank in run_scripts("split_groups.py", name):
        assert rank.returncode == 0, rank.stderr
        assert rank.stdout.splitlines().count("[2.0, 2.0]") == 2
