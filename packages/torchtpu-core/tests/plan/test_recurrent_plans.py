# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in plans: the loops that run on a device, which a plan never starts."""

from __future__ import annotations

import pytest
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan.session import record


@pytest.mark.parametrize("layer", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_are_the_loops_that_run(layer, tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        f"layer = torch.nn.{layer}(8, 8).to('tpu')\n"
        "with torch.autocast('tpu', dtype=torch.bfloat16):\n"
        "    layer(torch.ones(5, 2, 8, device='tpu'))[0].sum().backward()\n"
    )
    made = record(script, [], parse_slice("v5e:1x1"), 1)
    names = [op.name for op in made.ops]
    assert names.count("recurrent_layer") == names.count("recurrent_layer_backward") == 1
    assert "mm" not in names


@pytest.mark.parametrize(
    "lengths",
    [
        "torch.tensor([9, 7]), torch.tensor([3, 2])",
        "torch.tensor([9, 7]).to('tpu'), torch.tensor([3, 2]).to('tpu')",
        "[9, 7], [3, 2]",
    ],
    ids=["host", "device", "numbers"],
)
@pytest.mark.parametrize("targets", ["(2, 3)", "(5,)"], ids=["rows", "joined"])
def test_a_ctc_loss_is_planned_without_the_values_of_its_lengths(
    lengths, targets, tmp_path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "x = torch.randn(9, 2, 4, device='tpu', requires_grad=True)\n"
        f"y = torch.randint(1, 4, {targets}).to('tpu')\n"
        f"loss = torch.nn.functional.ctc_loss(x.log_softmax(-1), y, {lengths})\n"
        "loss.backward()\n"
        "assert loss.shape == () and x.grad.shape == x.shape\n"
    )
    names = [op.name for op in record(script, [], parse_slice("v5e:1x1"), 1).ops]
    assert names.count("_ctc_loss") == names.count("_ctc_loss_backward") == 1
