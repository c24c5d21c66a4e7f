# SPDX-License-Identifier: Apache-2.0
"""Waiting for the host is in the step, and advice on it gains what the step without it saves."""

from __future__ import annotations

import pytest
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan.making import make_plan
from torchtpu_core.plan.records import Phase, Recording, Work
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.testing.recordings import MIB, op, recording

V5P, V5E = parse_slice("v5p:4x4x4"), parse_slice("v5e:2x2")
PRODUCT = op("mm", Work.MATMUL, (1,), (2,), products=((1, 4096, 4096, 4096),))


def _plan(ops, where=V5E):
    return make_plan(recording(ops, {}), where, 1, "highest")


def _advice(plan, word):
    return next((item for item in plan.advice if word in item.title), None)


def test_reading_a_value_costs_the_step_a_start_from_the_host() -> None:
    plain, read = _plan([PRODUCT]), _plan([PRODUCT, op("host read", Work.HOST), PRODUCT])
    start = cal.HOST_START_S.value
    assert read.step_s == pytest.approx(2 * plain.step_s + start)
    assert _advice(read, "less often").gain_s == pytest.approx(start)
    assert _advice(plain, "less often") is None


@pytest.mark.parametrize("validated", [True, False])
def test_checks_of_distributions_are_named_with_their_switch(planned, validated) -> None:
    script = f"""
import torch
weight = torch.nn.Parameter(torch.ones(512, 512, device="tpu"))
for _ in range(2):
    logits = torch.ones(64, 512, device="tpu") @ weight
    policy = torch.distributions.Categorical(logits=logits, validate_args={validated})
    (-policy.log_prob(policy.sample())).mean().backward()
    torch.optim.SGD([weight], 0.1).step()
"""
    said = planned(script, "--target", "v5e:1x1")["said"]
    assert ("check distributions, which validate_args=False leaves out" in said) == validated
    assert ("reads a number" in said) == validated


def test_fallback_costs_its_way_to_the_host_and_back() -> None:
    there = op("geqrf", Work.HOST, (2,), (3,), host_bytes=160 * MIB)
    plain, fallen = _plan([PRODUCT]), _plan([PRODUCT, there])
    # v5e's link to its host is 16 GB/s each way.
    expected = cal.HOST_START_S.value + 160 * MIB / 16e9
    found = _advice(fallen, "run on the host")
    assert fallen.step_s - plain.step_s == pytest.approx(expected)
    assert found.gain_s == pytest.approx(expected)
    assert found.lines == (there.line,)


@pytest.mark.parametrize(("where", "said"), [(V5P, True), (V5E, False)])
def test_look_ups_go_to_sparse_cores_where_there_are_some(where, said) -> None:
    look_up = op("embedding", Work.MOVE, (5, 6), (7,), size=64 * MIB)
    found = _advice(_plan([look_up, PRODUCT], where), "SparseCores")
    assert (found is not None) is said
    if found is not None:
        whole = _plan([look_up, PRODUCT], where).step_s
        assert 0 < found.gain_s <= whole - _plan([PRODUCT], where).step_s + 1e-12


def _two_steps(size: int) -> Recording:
    first = op("mul", Work.ELEMENTWISE, (1,), (2,), size=MIB)
    end = op("add", Work.ELEMENTWISE, (2,), (1,), Phase.OPTIMIZER)
    second = op("mul", Work.ELEMENTWISE, (1,), (2,), size=size)
    made = recording([first, end, second, end], {})
    made.step_ends = [2, 4]
    return made


@pytest.mark.parametrize(("size", "said"), [(MIB, False), (MIB // 2, True)])
def test_shapes_that_change_between_steps_are_named(size, said) -> None:
    plan = make_plan(_two_steps(size), V5E, 1, "highest")
    found = _advice(plan, "Keep shapes")
    assert (found is not None) is said
    if found is not None:
        assert found.share.endswith(" steps")  # a compilation is no part of a step
