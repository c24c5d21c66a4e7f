# SPDX-License-Identifier: Apache-2.0
"""Targets: names, defaults, and the search for a real TPU."""

from __future__ import annotations

import doctest

import pytest
from torchtpu_core import env_vars, targets
from torchtpu_core.errors import MissingExtraError, TargetError
from torchtpu_core.targets import TargetKind


@pytest.fixture
def no_tpu(monkeypatch):
    """A machine without libtpu, and no target in the environment."""
    monkeypatch.delenv("TORCH_TPU_TARGET", raising=False)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(targets.importlib.util, "find_spec", lambda name: None)
    env_vars.reset()
    yield
    env_vars.reset()


def test_targets_doctests_pass() -> None:
    assert doctest.testmod(targets).failed == 0


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("v5e:2x2", 4),
        ("v5e:2x4", 8),
        ("v5e:1x1", 1),
        ("v5p:4x4x4", 4),
        ("tpu7x:2x2x1", 8),
        ("tpu7x:1x1x1", 2),
        ("v3:2x2", 8),
        ("cpu", 1),
        ("tpu", None),
    ],
)
def test_parse_target_counts_the_devices_of_one_host(text, devices) -> None:
    assert targets.parse_target(text).local_devices == devices


def test_parse_target_of_an_alias_uses_the_chip_name() -> None:
    assert targets.parse_target("Ironwood:4x4x4").name == "tpu7x:4x4x4"


@pytest.mark.parametrize("text", ["cpu", "tpu", "v6e:16x16"])
def test_parse_target_reads_its_own_name(text) -> None:
    assert targets.parse_target(targets.parse_target(text).name).name == text


def test_parse_target_of_another_device_says_what_is_allowed() -> None:
    with pytest.raises(TargetError, match="v5e:2x2"):
        targets.parse_target("cuda")


def test_parse_target_of_a_typing_mistake_suggests_the_target() -> None:
    with pytest.raises(TargetError, match="Did you mean 'tpu'"):
        targets.parse_target("tppu")


def test_simulated_target_names_chip_and_memory() -> None:
    target = targets.parse_target("v5e:2x2")
    assert target.simulated
    assert target.device_kind == "TPU v5e"
    assert target.hbm_bytes_per_device == round(15.75 * 2**30)


def test_target_with_a_slice_on_cpu_raises() -> None:
    slice_ = targets.parse_target("v5e:2x2").slice_
    with pytest.raises(TargetError):
        targets.Target(kind=TargetKind.CPU, name="cpu", slice_=slice_)


@pytest.mark.usefixtures("no_tpu")
def test_resolve_target_without_a_tpu_is_a_simulated_host() -> None:
    target = targets.resolve_target()
    assert target.name == targets.DEFAULT_SIMULATED
    assert target.slice_ is not None
    assert target.slice_.hosts == 1


def test_resolve_target_takes_the_environment(monkeypatch, no_tpu) -> None:
    monkeypatch.setenv("TORCH_TPU_TARGET", "v5p:4x4x4")
    assert targets.resolve_target().name == "v5p:4x4x4"


def test_resolve_target_prefers_its_argument(monkeypatch, no_tpu) -> None:
    monkeypatch.setenv("TORCH_TPU_TARGET", "v5p:4x4x4")
    assert targets.resolve_target("cpu").kind is TargetKind.CPU


@pytest.mark.usefixtures("no_tpu")
def test_resolve_target_tpu_without_libtpu_gives_the_pip_command() -> None:
    with pytest.raises(MissingExtraError, match=r"torchtpu-core\[tpu\]"):
        targets.resolve_target("tpu")


def test_resolve_target_prefers_a_real_tpu(monkeypatch, no_tpu) -> None:
    monkeypatch.setattr(targets, "real_tpu_present", lambda: True)
    assert targets.resolve_target().kind is TargetKind.TPU


@pytest.mark.parametrize(
    ("device_file", "library", "present"),
    [
        ("accel0", True, True),
        ("vfio/0", True, True),
        ("vfio/vfio", True, False),
        ("accel0", False, False),
        ("null", True, False),
    ],
)
def test_real_tpu_present_needs_device_files_and_library(
    monkeypatch, no_tpu, tmp_path, device_file, library, present
) -> None:
    path = tmp_path / device_file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    if library:
        libtpu = tmp_path / "libtpu.so"
        libtpu.touch()
        monkeypatch.setenv("TPU_LIBRARY_PATH", str(libtpu))
    assert targets.real_tpu_present(tmp_path) is present
