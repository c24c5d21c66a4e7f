# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in plans: the loops that run on a device, which a plan never starts."""

from __future__ import annotations

import pytest
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan.records import Work
from torchtpu_core.plan.recurrent_memory import lives_in_loops
from torchtpu_core.plan.schedule import Pricer
from torchtpu_core.plan.session import record
from torchtpu_core.plan.vmem import Life, Vmem, in_hbm
from torchtpu_core.testing.recordings import MIB, op


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


@pytest.mark.parametrize(("layer", "gates", "parts"), [("LSTM", 64, 1), ("GRU", 48, 2)])
def test_gradients_of_gates_stay_until_the_last_loop(layer, gates, parts, tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        f"layer = torch.nn.{layer}(8, 16, 2).to('tpu')\n"
        "layer(torch.ones(5, 2, 8, device='tpu'))[0].sum().backward()\n"
    )
    ops = record(script, [], parse_slice("v5e:1x1"), 1).ops
    lives = lives_in_loops(ops)
    assert {life.size_bytes for life in lives} == {5 * 2 * gates * 4}
    loops = [i for i, op in enumerate(ops) if op.name == "recurrent_layer_backward"]
    spans = [(life.first, life.end) for life in lives if life.first in loops]
    assert sorted(spans) == sorted([(index, loops[-1] + 1) for index in loops] * parts)
    assert len(lives) == len(spans) + 2  # and the gates of each forward pass


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


@pytest.mark.parametrize(
    ("lengths", "steps"),
    [
        ("torch.tensor([9, 7, 2])", 18),
        ("[9, 7, 2]", 18),
        ("torch.tensor([2, 9, 7]), enforce_sorted=False", 18),
        ("(x[..., 0] > 0).sum(%d).cpu()", 27),
    ],
    ids=["tensor", "numbers", "not sorted", "read from the device"],
)
@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences_are_planned_without_the_values_of_their_lengths(
    lengths, steps, batch_first, tmp_path
) -> None:
    shape = (3, 9, 8) if batch_first else (9, 3, 8)
    padded = (3, 11, 16) if batch_first else (11, 3, 16)
    lengths = lengths.replace("%d", str(int(batch_first)))
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "from torch.nn.utils import rnn\n"
        "layer = torch.nn.LSTM(8, 16).to('tpu')\n"
        f"x = torch.randn({shape}, device='tpu', requires_grad=True)\n"
        f"packed = rnn.pack_padded_sequence(x, {lengths}, batch_first={batch_first})\n"
        f"assert packed.data.shape == ({steps}, 8) and packed.batch_sizes.device.type == 'cpu'\n"
        "out, (h, _) = layer(packed)\n"
        f"y, n = rnn.pad_packed_sequence(out, {batch_first}, total_length=11)\n"
        f"assert y.shape == {padded} and n.shape == (3,) and h.shape == (1, 3, 16)\n"
        "(y.sum() + h.sum()).backward()\n"
        "assert x.grad.shape == x.shape\n"
    )
    names = [op.name for op in record(script, [], parse_slice("v5e:1x1"), 1).ops]
    assert names.count("recurrent_layer") == names.count("recurrent_layer_backward") == 1


@pytest.mark.parametrize(("loops", "stays"), [({1}, "in the loop"), ((), "read by many")])
def test_what_the_steps_of_a_loop_use_stays_in_vmem_first(loops, stays) -> None:
    many, in_loop = Life(1, MIB, (0, 2, 3), 4), Life(2, MIB, (1,), 3)
    out = in_hbm([many, in_loop], [], Vmem(MIB), loops)
    assert out == [many if stays == "in the loop" else in_loop]


def test_steps_of_a_loop_wait_for_what_they_move() -> None:
    pricer = Pricer(parse_slice("v5e:1x1"), 1, "high")
    loop, product = (
        op(name, Work.MATMUL, products=((64, 32, 256, 1024),), dtype="bf16")
        for name in ("recurrent_layer", "mm")
    )
    still, moving = (pricer.core(loop, size, 0.0)[0] for size in (0.0, MIB))
    assert moving == pytest.approx(still + pricer.rates.hbm_s(MIB))
    assert pricer.core(product, MIB, 0.0)[0] == pytest.approx(still)
