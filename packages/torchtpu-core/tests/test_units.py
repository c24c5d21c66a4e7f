# SPDX-License-Identifier: Apache-2.0
"""Conversions of bytes and seconds."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchtpu_core import units


def test_units_doctests_pass() -> None:
    assert doctest.testmod(units).failed == 0


def test_gib_and_gb_are_binary_and_decimal() -> None:
    assert (units.GIB, units.GB) == (1024 * 1024 * 1024, 1_000_000_000)


@given(st.integers(min_value=0, max_value=10**15))
def test_seconds_to_ps_inverts_ps_to_seconds(time_ps: int) -> None:
    assert units.seconds_to_ps(units.ps_to_seconds(time_ps)) == time_ps


@pytest.mark.parametrize(("convert", "expected"), [(units.ps_to_ms, 3.0), (units.ps_to_us, 3000.0)])
def test_ps_conversion_of_three_ms_returns_expected(convert, expected) -> None:
    assert convert(3 * 10**9) == expected


@given(st.integers(min_value=-(10**12), max_value=10**12), st.integers(1, 10**6))
def test_ceil_div_is_the_least_integer_above(numerator: int, denominator: int) -> None:
    quotient = units.ceil_div(numerator, denominator)
    assert (quotient - 1) * denominator < numerator <= quotient * denominator
