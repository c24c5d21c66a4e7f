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
