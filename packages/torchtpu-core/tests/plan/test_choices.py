# SPDX-License-Identifier: Apache-2.0
"""Scripts that choose elements by their values are planned for a share of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import warm_python
from torchtpu_core.plan import choices

Planned = Callable[..., dict]
MASKED = """
import torch
from torch import nn

table, head = nn.Embedding(96, 64, device="tpu"), nn.Linear(64, 96, device="tpu")
optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=0.1)
for _ in range(2):
    words = torch.randint(0, 96, (8, 32), device="tpu")
    chosen = torch.rand(8, 32, device="tpu") < 0.25
    logits = head(table(words)[chosen])
    print("rows", len(logits))
    nn.functional.cross_entropy(logits, words[chosen]).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SEARCHED = """
import torch

x = torch.randint(0, 9, (6, 8), device="tpu")
print("nonzero", tuple(x.nonzero().shape), [len(i) for i in torch.where(x == 3)])
print("selected", tuple(x.masked_select(x > 2).shape), tuple(x[x[:, 0] > 2, 1:].shape))
print("unique", [tuple(t.shape) for t in x.unique(return_inverse=True, return_counts=True)])
known = torch.tensor([True, False, True, False, False, True])
print("known", tuple(x[known].shape), tuple(x[known.to("tpu")].shape))
print("literal", tuple(x[torch.tensor([True, False] * 3, device="tpu")].shape))
written = x.clone()
written[x > 2] = x[x > 2] + 1
written[x[:, 0] > 2, torch.zeros(6, dtype=torch.long, device="tpu")] = 1
"""
OF_THE_HOST = """
import torch

found = torch.ones(1 << 23).nonzero()
print("found", len(found))
torch.ones(3, device="tpu").add_(1)
"""
REPEATED = """
import torch

torch.ones(3, device="tpu").repeat_interleave(torch.randint(3, (3,), device="tpu"))
"""


@pytest.mark.parametrize(("options", "rows"), [((), 256), (("--chosen", "0.25"), 64)])
def test_masks_choose_all_of_their_elements_or_the_stated_share(
    planned: Planned, options: tuple[str, ...], rows: int
) -> None:
    plan = planned(MASKED, "--target", "v5e:1x1", *options)
    assert plan["said"].count(f"rows {rows}\n") == 2
    # The head's product of each pass: forward, of its weight, of its input.
    assert plan["mfu"] * plan["step_s"] * 197e12 == pytest.approx(3 * 2 * rows * 64 * 96, rel=0.01)
    assert f"how many elements are true ({rows} of 256 taken; --chosen)" in plan["said"]
    assert "Read values from the device less often" in plan["said"]


def test_results_have_the_shapes_of_the_device(planned: Planned) -> None:
    said = planned(SEARCHED, "--target", "v5e:1x1")["said"]
    assert "nonzero (48, 2) [48, 48]" in said
    assert "selected (48,) (6, 7)" in said
    assert "unique [(48,), (6, 8), (48,)]" in said
    # Masks that have values: the host's, not once they were copied, and literals.
    assert "known (3, 8) (6, 8)\nliteral (3, 8)" in said


def test_large_tensors_of_the_host_are_searched_without_a_read(planned: Planned) -> None:
    said = planned(OF_THE_HOST, "--target", "v5e:1x1")["said"]
    assert f"found {1 << 23}" in said
    assert "how many elements are true" not in said


def test_sizes_that_are_sums_of_values_are_refused_with_the_remedy(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(REPEATED)
    code = "from torchtpu_core.cli.app import main; main()"
    done: subprocess.CompletedProcess[str] = warm_python.run(
        [sys.executable, "-c", code, "plan", str(script), "--target", "v5e:1x1"], cwd=tmp_path
    )
    assert done.returncode == 1
    assert "script.py:4 has a result whose shape depends on values" in done.stderr
    assert "Pass output_size=" in done.stderr


def test_share_is_rounded_up_and_never_more_than_all() -> None:
    assert [choices.count(share, 10) for share in (0, 0.01, 0.25, 1)] == [0, 1, 3, 10]


def test_only_operators_that_depend_on_values_have_parts() -> None:
    from torchtpu_core.runtime import tables

    known, aten = tables.without_a_device(), torch.ops.aten
    x, at = torch.ones(3), torch.tensor([0, 1])
    assert choices.parts(aten.index.Tensor, (x, [at]), known) is None
    assert choices.parts(aten.index_put_.default, (x, [x > 0], x), known) is None
    assert choices.parts(aten.add.Tensor, (x, x), known) is None
    assert choices.parts(aten.masked_select.default, (x, x > 0), known) is not None
    with pytest.raises(IndexError, match="does not match"):
        choices.parts(aten.index.Tensor, (x, [torch.ones(4, dtype=torch.bool)]), known)
