# SPDX-License-Identifier: Apache-2.0
"""Nothing that is simulated gets slower on faster hardware, or faster with more to do."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchtpu_core.hardware import chips
from torchtpu_core.hardware.chip import Chip
from torchtpu_core.hardware.sourced import Sourced
from torchtpu_core.validation.predict import predict
from torchtpu_core.workloads import predict_step
from torchtpu_core.workloads.microbenchmarks import CollectiveRun, Matmul
from torchtpu_core.workloads.spec import Experts, Hardware, Model, Parallel, Spec, Train
from torchtpu_core.workloads.training import scores_per_head

# Of the matrix units all rates together: narrow types pass more rows at once, at the same clock.
RATES = (
    ("peak_bf16_flops_per_s", "peak_int8_ops_per_s", "peak_fp8_flops_per_s"),
    ("hbm_bytes_per_s",),
    ("clock_hz",),
    ("ici_bytes_per_s_per_link",),
    ("dcn_bytes_per_s_per_chip",),
    ("host_link_bytes_per_s_per_chip",),
)
DENSE = Model(layers=8, emb=2048, heads=16, kv_heads=4, mlp=5632)
ROUTED = replace(DENSE, experts=Experts(count=16, per_token=2, mlp=1408))
RUNS = (
    (DENSE, Parallel()),
    (DENSE, Parallel(tensor=4)),
    (DENSE, Parallel(context=4)),
    (ROUTED, Parallel()),
    (ROUTED, Parallel(expert=4)),
)


def _faster(chip: Chip, rates: tuple[str, ...], factor: float) -> Chip:
    known = {rate: found for rate in rates if (found := getattr(chip, rate))}
    scaled = {rate: Sourced(found.value * factor, "test") for rate, found in known.items()}
    return replace(chip, **scaled)


def _step_s(spec: Spec, chip: Chip) -> float:
    known = mock.Mock(**{"get.return_value": chip})
    with mock.patch("torchtpu_core.workloads.meshes.chips", return_value=known):
        return predict_step(spec).step_s


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(RATES),
    st.floats(1.0, 8.0),
    st.sampled_from(("v4", "v5e", "v5p", "v6e", "tpu7x")),
    st.sampled_from(RUNS),
    st.sampled_from((1, 4)),
    st.sampled_from(("none", "int8")),
)
def test_step_on_a_faster_chip_is_never_slower(
    rates, factor, name, run, slices, quantization
) -> None:
    chip = chips().get(name)
    hardware = Hardware(chip=name, topology="64", slices=slices)
    train = Train(batch_per_chip=1, sequence=2048, quantization=quantization, offload=True)
    model, parallel = run
    spec = Spec(hardware=hardware, model=model, parallel=parallel, train=train)
    before, after = _step_s(spec, chip), _step_s(spec, _faster(chip, rates, factor))
    assert after <= before * (1 + 1e-9)


def _product_s(name: str, m: int, k: int, n: int) -> float:
    spec = Spec(hardware=Hardware(chip=name), matmul=Matmul(m=m, k=k, n=n))
    return predict(spec, "time", "s")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(("v5e", "v6e", "tpu7x")),
    *(st.integers(1, 9000) for _ in range(3)),
    st.sampled_from((0, 1, 2)),
    st.integers(1, 3000),
)
def test_larger_product_takes_longer_and_never_less_than_its_bounds(
    name, m, k, n, which, more
) -> None:
    chip, sides = chips().get(name), [m, k, n]
    time_s = _product_s(name, *sides)
    moved = 2 * (m * k + k * n + m * n)
    assert time_s >= 2 * m * k * n / chip.figure("peak_bf16_flops_per_s")
    assert time_s >= moved / chip.figure("hbm_bytes_per_s")
    sides[which] += more
    assert _product_s(name, *sides) >= time_s


def test_small_product_waits_for_all_its_operands() -> None:
    # 2 MiB each of operands and result do not overlap with 2 x 1024^3 operations.
    moved_s = 3 * 2 * 1024**2 / (0.867 * 819e9)
    computed_s = 2 * 1024**3 / 197e12
    assert _product_s("v5e", 1024, 1024, 1024) > moved_s + computed_s


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "permute")),
    st.sampled_from(("v5e:4x4", "v5e:16x16", "v5p:4x4x4", "tpu7x:2x2x4")),
    st.integers(0, 29),
)
def test_more_bytes_of_a_collective_take_longer(kind, where, power) -> None:
    chip, topology = where.split(":")
    small, large = (
        predict(
            Spec(
                hardware=Hardware(chip=chip, topology=topology),
                collective=CollectiveRun(kind=kind, bytes=float(size)),
            ),
            "time",
            "s",
        )
        for size in (2**power, 2 ** (power + 1))
    )
    assert small <= large


@pytest.mark.parametrize(("window", "blocks"), [(128, 2), (1024, 2), (1025, 3), (4096, 5)])
def test_window_costs_the_blocks_it_touches(window, blocks) -> None:
    # Blocks of 1024: the first query of a block reaches `window` tokens back.
    assert scores_per_head(32768, window, causal=True) == 32768 * blocks * 1024
