# SPDX-License-Identifier: Apache-2.0
"""Hooks that run while programs are compiled."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torchtpu_core import plugins
from torchtpu_core.hookspecs import hookimpl


@pytest.fixture
def register():
    """Registers plugins for one test."""
    names = []

    def add(name: str, **implementations: object) -> None:
        plugin = SimpleNamespace(**{k: hookimpl(v) for k, v in implementations.items()})
        plugins.manager().register(plugin, name=name)
        names.append(name)

    yield add
    for name in names:
        plugins.manager().unregister(name=name)


def test_after_compile_hook_sees_name_and_text_of_a_new_program(register) -> None:
    seen = []

    def torchtpu_after_compile(name: str, stablehlo: str) -> None:
        seen.append((name, stablehlo))

    register("watcher", torchtpu_after_compile=torchtpu_after_compile)
    torch.ones(3, 17, device="tpu").tanh_()
    name, text = seen[-1]
    assert "tanh" in name and "stablehlo.tanh" in text


def test_cost_model_hook_sets_the_simulated_time_of_a_program(register) -> None:
    def torchtpu_cost_model(target: str) -> int:
        assert target == torch.tpu.get_device_properties().target
        return 7_000_000_000_000

    register("slow", torchtpu_cost_model=torchtpu_cost_model)
    x = torch.ones(3, 19, device="tpu")
    start, end = (torch.tpu.Event(enable_timing=True) for _ in range(2))
    start.record()
    x.sinh_()
    end.record()
    assert start.elapsed_time(end) == pytest.approx(7000.0)


def test_hook_that_raises_is_one_warning_and_the_program_runs(register) -> None:
    def torchtpu_after_compile() -> None:
        raise ValueError("no")

    register("broken-watcher", torchtpu_after_compile=torchtpu_after_compile)
    with pytest.warns(plugins.PluginWarning, match="broken-watcher.*ValueError: no"):
        x = torch.full((3, 23), 2.0, device="tpu").square_()
    assert x.sum().item() == 3 * 23 * 4
