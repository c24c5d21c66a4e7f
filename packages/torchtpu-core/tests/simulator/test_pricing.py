# SPDX-License-Identifier: Apache-2.0
"""Prices: rooflines and collectives, from figures written down in the tests."""

from __future__ import annotations

from types import SimpleNamespace

import pluggy
import pytest
from torchtpu_core import hookspecs, plugins
from torchtpu_core.errors import UnpublishedFigureError
from torchtpu_core.hardware import chips
from torchtpu_core.ici import CollectiveTime, Network, parse_slice
from torchtpu_core.simulator import (
    Collective,
    CollectiveKind,
    MatmulClass,
    Precision,
    ProgramCost,
    price,
)
from torchtpu_core.simulator.calibration import ICI_HIDDEN

V5E = chips().get("v5e")
TPU7X = chips().get("tpu7x")
MIB = 2**20


def _matmul(size: int, dtype: str, precision: Precision = Precision.DEFAULT) -> ProgramCost:
    element_bytes = {"bf16": 2, "f32": 4, "i8": 1}[dtype]
    return ProgramCost(
        matmul_flops={MatmulClass(dtype, precision): 2 * size**3},
        bytes_hbm=3 * size**2 * element_bytes,
    )


def _collective(kind: CollectiveKind, operand: int, result: int, groups=()) -> ProgramCost:
    collective = Collective(kind=kind, operand_bytes=operand, result_bytes=result, groups=groups)
    return ProgramCost(collectives=(collective,), devices=4)


def test_large_bf16_matmul_takes_its_roofline_time() -> None:
    bound_ps = 2 * 8192**3 / 197e12 * 1e12
    total_ps = price(_matmul(8192, "bf16"), V5E).total_ps
    assert bound_ps <= total_ps < 2 * bound_ps
    assert price(_matmul(8192, "bf16"), V5E).bound_by == "matrix"


@pytest.mark.parametrize(
    ("precision", "passes"),
    [(Precision.DEFAULT, 1), (Precision.HIGH, 3), (Precision.HIGHEST, 6)],
)
def test_f32_matmul_pays_for_its_bf16_passes(precision, passes) -> None:
    expected_ps = passes * 2 * 1024**3 / 197e12 * 1e12
    assert price(_matmul(1024, "f32", precision), V5E).matrix_ps == pytest.approx(expected_ps)


def test_int8_matmul_runs_at_the_int8_peak() -> None:
    expected_ps = 2 * 1024**3 / 393e12 * 1e12
    assert price(_matmul(1024, "i8"), V5E).matrix_ps == pytest.approx(expected_ps, abs=1)


def test_int8_matmul_without_an_int8_peak_runs_at_the_bf16_peak() -> None:
    expected_ps = 2 * 1024**3 / (2307e12 / 2) * 1e12
    assert price(_matmul(1024, "i8"), TPU7X).matrix_ps == pytest.approx(expected_ps, abs=1)


def test_chip_of_two_devices_gives_each_half_of_its_memory_rate() -> None:
    expected_ps = 2**30 / (0.9 * 7380e9 / 2) * 1e12
    priced = price(ProgramCost(bytes_hbm=2**30), TPU7X)
    assert priced.hbm_ps == pytest.approx(expected_ps, abs=1)
    assert priced.bound_by == "hbm"


def test_elementwise_work_runs_on_four_slots_of_1024_lanes() -> None:
    expected_ps = 2**30 / (4 * 1024 * 1.5e9) * 1e12
    assert price(ProgramCost(elementwise_flops=2**30), V5E).vector_ps == pytest.approx(
        expected_ps, abs=1
    )


def test_transcendentals_run_on_one_slot() -> None:
    plain = price(ProgramCost(elementwise_flops=2**30), V5E).vector_ps
    assert price(ProgramCost(transcendentals=2**30), V5E).vector_ps == pytest.approx(
        4 * plain, abs=4
    )


def test_empty_program_takes_the_launch_time() -> None:
    priced = price(ProgramCost(), V5E)
    assert priced.total_ps == priced.launch_ps > 0


def test_total_adds_collectives_to_the_slowest_unit() -> None:
    cost = _matmul(4096, "bf16") + _collective(CollectiveKind.ALL_REDUCE, MIB, MIB)
    priced = price(cost, parse_slice("v5e:2x2"))
    slowest = max(priced.matrix_ps, priced.hbm_ps, priced.vector_ps)
    assert priced.total_ps == slowest + priced.exposed_ps + priced.launch_ps
    assert priced.exposed_ps + priced.hidden_ps == priced.ici_ps


def test_collective_hides_behind_other_work_and_no_further() -> None:
    reduced = Collective(kind=CollectiveKind.ALL_REDUCE, operand_bytes=MIB, result_bytes=MIB)
    where = parse_slice("v5e:2x2")
    alone = price(ProgramCost(collectives=(reduced,), devices=4), where)
    assert alone.hidden_ps == 0
    little = price(ProgramCost(collectives=(reduced,), devices=4, bytes_hbm=1000), where)
    assert little.hidden_ps == little.compute_ps > 0
    much = price(ProgramCost(collectives=(reduced,), devices=4, bytes_hbm=10**9), where)
    assert much.hidden_ps == round(ICI_HIDDEN.value * much.ici_ps)


@pytest.mark.parametrize(
    ("kind", "operand", "result", "expected_s"),
    [
        # 2x2 mesh of v5e: two links of 45 GB/s per chip, diameter of two hops of 1 us.
        (CollectiveKind.ALL_GATHER, MIB, 4 * MIB, 3 * MIB / 90e9 + 2e-6),
        (CollectiveKind.REDUCE_SCATTER, 4 * MIB, MIB, 3 * MIB / 90e9 + 2e-6),
        (CollectiveKind.ALL_REDUCE, 4 * MIB, 4 * MIB, 2 * (3 * MIB / 90e9 + 2e-6)),
        (CollectiveKind.ALL_TO_ALL, MIB, MIB, MIB / 90e9 + 2e-6),
        # The root scatters, and all gather.
        (CollectiveKind.BROADCAST, MIB, MIB, 2 * (0.75 * MIB / 90e9 + 2e-6)),
    ],
)
def test_collective_on_a_square_of_four_takes_its_closed_form(
    kind, operand, result, expected_s
) -> None:
    priced = price(_collective(kind, operand, result), parse_slice("v5e:2x2"))
    assert priced.ici_ps == pytest.approx(expected_s * 1e12)
    assert priced.bound_by == "ici"


def test_collective_on_a_chip_alone_runs_on_a_line() -> None:
    cost = _collective(CollectiveKind.ALL_GATHER, MIB, 4 * MIB)
    expected_s = 3 * MIB / 45e9 + 3e-6
    assert price(cost, V5E).ici_ps == pytest.approx(expected_s * 1e12)


def test_collective_of_count_three_takes_three_times_as_long() -> None:
    once = _collective(CollectiveKind.ALL_REDUCE, MIB, MIB)
    where = parse_slice("v5e:2x2")
    assert price(once.times(3), where).ici_ps == pytest.approx(3 * price(once, where).ici_ps, abs=3)


def test_collective_of_groups_of_one_takes_no_time() -> None:
    cost = _collective(CollectiveKind.ALL_REDUCE, MIB, MIB, ((0,), (1,), (2,), (3,)))
    assert price(cost, parse_slice("v5e:2x2")).ici_ps == 0


@pytest.mark.parametrize(
    ("pairs", "expected_s"),
    [
        (((0, 1), (1, 0)), MIB / 45e9 + 1e-6),
        # Bytes flow through the chip between.
        (((0, 3),), MIB / 45e9 + 2e-6),
        (((0, 0),), 0.0),
        ((), 0.0),
    ],
)
def test_permute_takes_its_longest_distance(pairs, expected_s) -> None:
    cost = _collective(CollectiveKind.PERMUTE, MIB, MIB, pairs)
    assert price(cost, parse_slice("v5e:2x2")).ici_ps == pytest.approx(expected_s * 1e12)


def test_groups_of_sibling_devices_share_the_links_of_their_chips() -> None:
    where = parse_slice("tpu7x:2x2x1")
    all_devices = _collective(CollectiveKind.ALL_REDUCE, MIB, MIB, (tuple(range(8)),))
    two_groups = _collective(CollectiveKind.ALL_REDUCE, MIB, MIB, ((0, 2, 4, 6), (1, 3, 5, 7)))
    latency_ps = 2 * 2 * 10**6
    assert price(two_groups, where).ici_ps - latency_ps == pytest.approx(
        2 * (price(all_devices, where).ici_ps - latency_ps), abs=2
    )


def test_permute_of_both_devices_of_a_chip_shares_its_link() -> None:
    where = parse_slice("tpu7x:2x2x1")
    cost = _collective(CollectiveKind.PERMUTE, MIB, MIB, ((0, 2), (1, 3)))
    assert price(cost, where).ici_ps == pytest.approx((2 * MIB / 90e9 + 1e-6) * 1e12)


@pytest.mark.parametrize(
    ("kind", "groups"),
    [(CollectiveKind.ALL_GATHER, ((0, 1),)), (CollectiveKind.PERMUTE, ((0, 1), (1, 0)))],
)
def test_collective_within_a_chip_uses_the_link_between_its_dies(kind, groups) -> None:
    cost = _collective(kind, MIB, 2 * MIB, groups)
    assert price(cost, parse_slice("tpu7x:2x2x1")).ici_ps == pytest.approx(
        MIB / (6 * 90e9) * 1e12, abs=1
    )


def test_collective_within_a_chip_of_unpublished_rate_raises() -> None:
    cost = _collective(CollectiveKind.ALL_GATHER, MIB, 2 * MIB, ((0, 1),))
    with pytest.raises(UnpublishedFigureError, match="die_to_die_ratio of chip 'v3'"):
        price(cost, parse_slice("v3:2x2"))


def test_program_on_a_chip_of_unpublished_peak_raises() -> None:
    with pytest.raises(UnpublishedFigureError, match="peak_bf16_flops_per_s"):
        price(_matmul(128, "bf16"), chips().get("tpu8t"))


def test_sum_of_costs_adds_every_part() -> None:
    bf16, f32 = MatmulClass("bf16"), MatmulClass("f32")
    left = ProgramCost(matmul_flops={bf16: 1, f32: 2}, elementwise_flops=3, bytes_hbm=4)
    right = ProgramCost(matmul_flops={bf16: 10}, transcendentals=20, unknown_loops=1)
    total = left + right
    assert total.matmul_flops == {bf16: 11, f32: 2}
    assert total.flops == 11 + 2 + 3 + 20
    assert (total.bytes_hbm, total.unknown_loops) == (4, 1)


def test_cost_times_zero_has_no_work() -> None:
    cost = _matmul(8, "bf16") + _collective(CollectiveKind.ALL_REDUCE, MIB, MIB)
    none = cost.times(0)
    assert (none.flops, none.bytes_hbm, none.collectives) == (0, 0, ())


def test_plugin_s_network_model_prices_collectives(monkeypatch) -> None:
    class Slow:
        def __init__(self, network: Network) -> None:
            self.network = network

        def collective_time(self, kind, operand_bytes, span) -> CollectiveTime:
            return CollectiveTime(kind=kind, time_ps=int(operand_bytes) * 10**6)

    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    hook = hookspecs.hookimpl(lambda network: Slow(network))
    manager.register(SimpleNamespace(torchtpu_network_model=hook), name="slow")
    monkeypatch.setattr(plugins, "_manager", manager)
    cost = _collective(CollectiveKind.ALL_REDUCE, 1000, 1000)
    assert price(cost, parse_slice("v5e:2x2")).ici_ps == 10**9
