# SPDX-License-Identifier: Apache-2.0
"""Plans of embedding tables, and advice on them: what a sparse gradient saves."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchtpu_core.errors import PlanError
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan.session import record
from torchtpu_core.plan.table_rows import lives_of_tables
from torchtpu_core.plan.uses import uses_of

TIED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(131_072, 256)
        self.head = torch.nn.Linear(256, 131_072, bias=False)
        TIE

    def forward(self, x):
        return self.head(self.table(x).tanh())

model = Model().to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    x = torch.randint(0, 131_072, (64,), device="tpu")
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), x).backward()
    optimizer.step()
"""
DENSE = """
import torch

table = torch.nn.EmbeddingBag(200_000, 64, mode="sum", sparse=False).to("tpu")
small = torch.nn.Embedding(64, 64, sparse=False).to("tpu")
optimizers = [torch.optim.Adagrad(m.parameters(), lr=0.1) for m in (table, small)]
for _ in range(2):
    rows = torch.randint(0, 200_000, (512, 4), device="tpu")
    (table(rows) + small(rows[:, 0] % 64)).square().sum().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
"""
SPARSE_ADAM = """
import torch

table = torch.nn.Embedding(100_000, 32, sparse=True).to("tpu")
optimizer = torch.optim.SparseAdam(table.parameters())
for _ in range(2):
    rows = torch.randint(0, 100_000, (128,), device="tpu")
    (table(rows) * table(rows // 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_gain_of_sparse_gradients_is_that_of_the_script_with_them(planned) -> None:
    dense = planned(DENSE, "--target", "v5p:2x2x1")
    sparse = planned(DENSE.replace("sparse=False", "sparse=True"), "--target", "v5p:2x2x1")
    title = "Give embeddings sparse gradients"
    found = next(one for one in dense["advice"] if one["title"] == title)
    assert "1.0% of the rows of 1 table," in found["why"]  # the other's rows are all looked up
    assert title not in [one["title"] for one in sparse["advice"]]
    gained = dense["step_s"] - sparse["step_s"]
    assert found["simulated_gain_s"] == pytest.approx(gained, rel=0.1)


@pytest.mark.parametrize(("cast", "itemsize", "fewer"), [("", 4, 2), (".bfloat16()", 2, 1)])
def test_rows_are_added_to_the_gradient_of_logits_that_share_the_table(
    planned, cast, itemsize, fewer
) -> None:
    """A parameter less, and a gradient less if it is not summed wider than it is kept."""
    script = TIED.replace('.to("tpu")', f'.to("tpu"){cast}')
    target = ("--target", "v5e:1x1")
    apart = planned(script.replace("TIE", ""), *target)["hbm"]["peak_bytes"]
    tied = planned(script.replace("TIE", "self.head.weight = self.table.weight"), *target)
    table = 131_072 * 256 * itemsize
    assert tied["hbm"]["peak_bytes"] == pytest.approx(apart - fewer * table, abs=table / 8)


def test_memory_of_sparse_gradients_is_that_of_their_rows(planned) -> None:
    plan = planned(SPARSE_ADAM, "--target", "v6e:1x1")  # its VMEM holds the table in whole tiles
    table = 100_000 * 32 * 4
    assert plan["hbm"]["at_peak"]["parameters"] == table
    assert plan["hbm"]["at_peak"]["optimizer state"] == 2 * table
    # Two look-ups of 128 rows, indices and values, some of them twice at the peak.
    rows = 2 * 128 * (8 + 32 * 4)
    assert rows <= plan["hbm"]["peak_bytes"] - 3 * table <= 8 * rows


def test_sparse_gradients_are_not_for_the_tpu_compiler(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SPARSE_ADAM)
    with pytest.raises(PlanError, match="Plan it without --compiler xla-tpu") as error:
        record(script, [], parse_slice("v5p:2x2x1"), 1, keep_calls=True)
    assert "script.py:8" in str(error.value)


@pytest.mark.parametrize(
    ("features", "size", "layer"),
    [
        (64, 200_000 * 128 * 4, "Embedding"),
        (64, 200_000 * 128 * 4, "EmbeddingBag"),
        (128, 0, "Embedding"),
    ],
)
def test_rows_of_tables_are_moved_for_look_ups_and_sums(features, size, layer, tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        f"table = torch.nn.{layer}(200_000, {features}).to('tpu')\n"
        "optimizer = torch.optim.SGD(table.parameters(), 0.1)\n"
        "for _ in range(2):\n"
        "    optimizer.zero_grad()\n"
        "    table(torch.arange(6, device='tpu').view(2, 3)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    made = record(script, [], parse_slice("v5e:1x1"), 1)
    start, end = made.step()
    ops = made.ops[start:end]
    lives = lives_of_tables(ops, made.blocks, uses_of(ops, made.blocks, start))
    assert [life.size_bytes for life in lives] == ([size] * 2 if size else [])
