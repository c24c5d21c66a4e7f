# SPDX-License-Identifier: Apache-2.0
"""DDP, FSDP2, DTensor, pipelines and checkpoints equal one process with the whole batch."""

from __future__ import annotations

import importlib

import pytest
import torch

FEATURES = importlib.import_module("features").FEATURES
# Sums of float32 in another order; bfloat16 has 8 bits of mantissa.
CLOSE = {"rtol": 1e-5, "atol": 1e-6}
CLOSE_BFLOAT16 = {"rtol": 2e-2, "atol": 2e-3}
#: What CI runs on two ranks; the rest takes longer and runs on four.
QUICK = ("ddp_no_sync", "ddp_join", "ddp_synchronised_batch_norm", "fsdp_mixed_precision",
         "tensor_parallel", "some_parameters_parallel", "one_hot_rows",
         "pipeline_one_forward_one_backward")  # fmt: skip


def check(outcomes, **tolerance: float) -> None:
    for found, wanted in outcomes:
        assert len(found) == len(wanted)
        for got, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, expected, **tolerance)


def tolerance_of(name: str) -> dict[str, float]:
    return CLOSE_BFLOAT16 if "mixed_precision" in name else CLOSE


@pytest.mark.parametrize("name", QUICK)
def test_feature_over_two_ranks_equals_one_process(pair, name):
    check(pair("features.run", name), **tolerance_of(name))


@pytest.mark.parametrize("hook", ["quantization_pertensor_hook", "quantization_perchannel_hook"])
def test_quantising_hook_of_ddp_keeps_gradients_within_a_step(pair, hook):
    for found, wanted, step in pair("ddp_features.quantised_gradients", hook):
        for got, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=step)


def test_checkpoint_of_one_layout_loads_into_another(pair, tmp_path):
    check(pair("dtensor_features.checkpoint_resharded", str(tmp_path)))


def test_compiled_dropout_of_a_dtensor_draws_as_without_compilation(pair):
    check(pair("dtensor_features.random_compiled"), rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_feature_over_four_ranks_equals_one_process(four, name):
    if "compiled" in name:
        pytest.importorskip("torchtpu_compile", reason="torch.compile is torchtpu-compile's")
    check(four("features.run", name), **tolerance_of(name))


def test_mistake_in_the_backward_pass_of_a_parallel_loss_names_the_users_line(pair):
    for said in pair("dtensor_features.backward_mistake"):
        assert "out of bounds" in said and "dtensor_features.py" in said
        assert "in backward_mistake" in said


def test_collective_of_the_backward_pass_is_called_the_backward_of_a_line(pair):
    for forward, backward in pair("dtensor_features.lines_of_a_redistribution"):
        assert forward["name"] == "lines_of_a_redistribution"
        assert backward == {**forward, "name": f"backward of {forward['name']}"}
