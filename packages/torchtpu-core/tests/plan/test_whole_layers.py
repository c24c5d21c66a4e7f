# SPDX-License-Identifier: Apache-2.0
"""Operators that are whole layers: a plan prices their parts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import warm_python

B, T, D, H, F = 4, 128, 256, 4, 512
SCRIPT = f"""
import torch
from torch import nn
{{layer}}
layer = layer.to("tpu").eval()
for _ in range(2):
    with torch.{{mode}}():
        x = torch.randn({B}, {T}, {D}, device="tpu")
        {{call}}
"""
CHECK = """
import json, math, sys
from pathlib import Path
from torchtpu_core.plan.session import record
from torchtpu_core.targets import parse_target

recording = record(Path(sys.argv[1]), [], parse_target("v5e:1x1").slice_, 1, keep_calls=True)
start, end = recording.step()
calls = [c.func._schema.name for c in recording.calls if start <= c.index < end]
flops = sum(2 * math.prod(p) for op in recording.ops[start:end] for p in op.products)
print(json.dumps([flops, calls]))
"""
ENCODER = f"layer = nn.TransformerEncoderLayer({D}, {H}, {F}, batch_first=True)"
ATTENTION = f"layer = nn.MultiheadAttention({D}, {H}, batch_first=True)"
#: Products of tokens with weights, and of queries with keys and with values.
_ATTENTION = 2 * B * T * 4 * D * D + 2 * B * T * T * 2 * D
_FEED_FORWARD = 2 * B * T * 2 * D * F


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
@pytest.mark.parametrize(
    ("layer", "call", "name", "flops"),
    [
        (ENCODER, "layer(x)", "_transformer_encoder_layer_fwd", _ATTENTION + _FEED_FORWARD),
        (ATTENTION, "layer(x, x, x)", "_native_multi_head_attention", _ATTENTION),
    ],
    ids=["encoder", "attention"],
)
def test_layer_that_is_one_operator_has_the_products_of_its_parts(
    tmp_path: Path, mode: str, layer: str, call: str, name: str, flops: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(layer=layer, mode=mode, call=call))
    done = warm_python.run([sys.executable, "-c", CHECK, str(script)], timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    counted, calls = json.loads(done.stdout.strip().splitlines()[-1])
    assert counted == flops
    # What is compiled is what runs.
    assert [one for one in calls if one not in ("aten::randn", "aten::normal_")] == [
        f"aten::{name}"
    ]
