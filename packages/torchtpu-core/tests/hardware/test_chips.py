# SPDX-License-Identifier: Apache-2.0
"""Chip records and their registry."""

from __future__ import annotations

import dataclasses
import math

import pytest
from torchtpu_core.errors import PluginError, TargetError, UnpublishedFigureError
from torchtpu_core.hardware import Chip, ChipRegistry, Sourced, Status, chips
from torchtpu_core.ici import make_slice

ALL = list(chips())
SIMULATED = [chip for chip in ALL if chip.cores_per_chip and chip.ici_axes]
EXAMPLE = Chip(name="acme1", aliases=("acme",), device_kind="ACME 1", geometry_source="this test")


def _ids(chip: Chip) -> str:
    return chip.name


@pytest.mark.parametrize(
    ("name", "bf16_tera", "hbm_gb_per_s", "ici_links", "devices"),
    [
        ("v4", 275, 1200, 6, 1),
        ("v5e", 197, 819, 4, 1),
        ("v5p", 459, 2765, 6, 1),
        ("v6e", 918, 1638, 4, 1),
        ("tpu7x", 2307, 7380, 6, 2),
    ],
)
def test_record_holds_the_published_row(name, bf16_tera, hbm_gb_per_s, ici_links, devices) -> None:
    chip = chips().get(name)
    assert chip.figure("peak_bf16_flops_per_s") == bf16_tera * 1e12
    assert chip.figure("hbm_bytes_per_s") == hbm_gb_per_s * 1e9
    assert (chip.ici_links_per_chip, chip.devices_per_chip) == (ici_links, devices)


@pytest.mark.parametrize("chip", SIMULATED, ids=_ids)
def test_links_of_a_chip_are_two_per_axis(chip) -> None:
    assert chip.ici_links_per_chip == 2 * chip.ici_axes


@pytest.mark.parametrize("chip", SIMULATED, ids=_ids)
def test_usable_memory_fits_the_share_of_a_device(chip) -> None:
    share = chip.hbm_bytes.value // chip.devices_per_chip
    assert 0.9 * share < chip.hbm_device_bytes <= share


@pytest.mark.parametrize("chip", SIMULATED, ids=_ids)
def test_clock_and_matrix_units_explain_the_peak_to_a_factor_of_four(chip) -> None:
    multiplies = chip.cores_per_chip * chip.mxu_per_core * chip.mxu_side**2
    from_clock = 2 * multiplies * chip.figure("clock_hz")
    assert 0.9 < chip.figure("peak_bf16_flops_per_s") / from_clock < 4.1


@pytest.mark.parametrize("chip", SIMULATED, ids=_ids)
def test_pod_is_as_large_as_its_largest_slice(chip) -> None:
    if chip.pod_shape:
        assert math.prod(chip.pod_shape) == chip.pod_chips
        assert chip.pod_shape in chip.slice_shapes


@pytest.mark.parametrize(
    ("name", "bisection_tb_per_s", "all_reduce_tb_per_s"),
    [("v5e", 1.6, 51.2), ("v6e", 3.2, 102.4)],
)
def test_links_of_a_pod_make_its_published_bandwidths(
    name, bisection_tb_per_s, all_reduce_tb_per_s
) -> None:
    # Both rings of an axis are cut twice; every chip sends on all links in an all-reduce.
    chip = chips().get(name)
    torus = make_slice(chip, chip.pod_shape).torus
    rate = chip.figure("ici_bytes_per_s_per_link")
    assert torus.cut_links(0) * rate == pytest.approx(bisection_tb_per_s * 1e12)
    assert len(list(torus.links())) * rate == pytest.approx(all_reduce_tb_per_s * 1e12)


@pytest.mark.parametrize("chip", ALL, ids=_ids)
def test_tiles_are_of_chips_with_sparse_cores(chip) -> None:
    assert bool(chip.sparse_core_tiles) <= bool(chip.sparse_cores_per_chip)
    assert chip.offloads_collectives <= bool(chip.sparse_cores_per_chip)


@pytest.mark.parametrize("chip", ALL, ids=_ids)
def test_every_figure_has_a_source(chip) -> None:
    figures = [getattr(chip, field.name) for field in dataclasses.fields(chip)]
    sourced = [figure for figure in figures if isinstance(figure, Sourced)]
    assert sourced
    assert all(figure.source and figure.status in Status for figure in sourced)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("v5litepod", "v5e"), ("Trillium", "v6e"), ("ironwood", "tpu7x"), ("v7x", "tpu7x")],
)
def test_get_of_an_alias_returns_the_chip(name, expected) -> None:
    assert chips().get(name).name == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("TPU v5 lite", "v5e"), ("TPU v5p", "v5p"), ("TPU v6 lite", "v6e"), ("TPU7x", "tpu7x")],
)
def test_by_device_kind_knows_the_names_of_pjrt(kind, expected) -> None:
    assert chips().by_device_kind(kind).name == expected


def test_get_of_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(TargetError, match="Did you mean 'v5litepod'"):
        chips().get("v5litepd")


def test_by_device_kind_of_an_unknown_kind_suggests_the_nearest() -> None:
    with pytest.raises(TargetError, match="TPU v5 lite"):
        chips().by_device_kind("TPU v5 lit")


def test_figure_that_is_not_published_raises() -> None:
    with pytest.raises(UnpublishedFigureError, match="peak_bf16_flops_per_s of chip 'tpu8t'"):
        chips().get("tpu8t").figure("peak_bf16_flops_per_s")


def test_extend_makes_a_chip_known_by_name_and_alias() -> None:
    registry = ChipRegistry([EXAMPLE])
    assert registry.get("ACME") is EXAMPLE
    assert "acme1" in registry
    assert list(registry) == [EXAMPLE]


@pytest.mark.parametrize(
    "twin",
    [
        dataclasses.replace(EXAMPLE, device_kind="ACME 2"),
        dataclasses.replace(EXAMPLE, name="acme2", device_kind="ACME 2"),
        dataclasses.replace(EXAMPLE, name="acme2", aliases=()),
    ],
    ids=["name", "alias", "device kind"],
)
def test_extend_with_a_taken_name_raises_and_changes_nothing(twin) -> None:
    registry = ChipRegistry([EXAMPLE])
    with pytest.raises(PluginError, match="already names chip 'acme1'"):
        registry.extend([twin])
    assert list(registry) == [EXAMPLE]


def test_chip_with_a_colon_in_its_name_raises() -> None:
    with pytest.raises(ValueError, match="cannot name a chip"):
        Chip(name="v9:x", device_kind="TPU v9", geometry_source="this test")


def test_chip_with_a_shape_of_wrong_rank_raises() -> None:
    with pytest.raises(ValueError, match="needs 2 axes"):
        dataclasses.replace(EXAMPLE, ici_axes=2, slice_shapes=((2, 2, 1),))


def test_sourced_without_a_source_raises() -> None:
    with pytest.raises(ValueError, match="no source"):
        Sourced(1, "")
