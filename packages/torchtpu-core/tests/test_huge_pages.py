# SPDX-License-Identifier: Apache-2.0
"""When a process should be started with huge pages for malloc."""

from __future__ import annotations

import platform

import pytest
from torchtpu_core import huge_pages


@pytest.fixture(autouse=True)
def _a_system_where_it_helps(monkeypatch, tmp_path):
    system = tmp_path / "enabled"
    system.write_text("always [madvise] never\n")
    monkeypatch.setattr(huge_pages, "_SYSTEM", system)
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    return system


def test_the_setting_joins_what_is_set() -> None:
    assert huge_pages.missing({}) == "glibc.malloc.hugetlb=1"
    others = {"GLIBC_TUNABLES": "glibc.cpu.x86_ibt=on"}
    assert huge_pages.missing(others) == "glibc.cpu.x86_ibt=on:glibc.malloc.hugetlb=1"


@pytest.mark.parametrize(
    "environment",
    [{"GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}, {"LD_PRELOAD": "libjemalloc.so"}],
)
def test_a_malloc_that_the_user_set_up_stays(environment) -> None:
    assert huge_pages.missing(environment) is None


@pytest.mark.parametrize("libc", [("glibc", "2.31"), ("", "")])
def test_another_libc_is_left_alone(monkeypatch, libc) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    assert huge_pages.missing({}) is None


def test_a_system_that_decided_already(_a_system_where_it_helps) -> None:
    _a_system_where_it_helps.write_text("[always] madvise never\n")
    assert huge_pages.missing({}) is None
    _a_system_where_it_helps.unlink()
    assert huge_pages.missing({}) is None
