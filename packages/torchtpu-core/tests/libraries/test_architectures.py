# SPDX-License-Identifier: Apache-2.0
"""A slice of the model zoo, and the harness itself on models that are known to differ."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.testing.model_zoo.architectures import ARCHITECTURES
from torchtpu_core.testing.model_zoo.inputs import INPUTS
from torchtpu_core.testing.model_zoo.trial import differences, run, try_out

pytest.importorskip("transformers", reason="needs requirements/zoo.txt")

#: One of each kind that shares little with the others.
SLICE = ("bert", "llama", "t5", "vit", "mixtral", "wav2vec2")


def test_architectures_have_different_names_and_known_inputs() -> None:
    names = [row.name for row in ARCHITECTURES]
    assert len(set(names)) == len(names)
    assert {row.inputs for row in ARCHITECTURES} == set(INPUTS)


@pytest.mark.parametrize("name", SLICE)
def test_architecture_in_strict_mode_agrees_with_the_cpu(name: str) -> None:
    outcome = try_out(next(row for row in ARCHITECTURES if row.name == name), "strict")
    assert (outcome.status, outcome.detail) == ("pass", "")
    assert not outcome.fallbacks
    assert outcome.late_compiles == 0


class _Squares(torch.nn.Module):
    """Answers as models of transformers do: a mapping with a loss."""

    def __init__(self, slip: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1e-3, 2e-3]))
        self.slip = slip

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.weight * x * (1 + self.slip)
        return {"loss": (y**2).mean(), "y": y}


def test_differences_of_a_model_with_a_slip_name_outputs_and_gradients() -> None:
    batch = {"x": torch.tensor([1.0, 3.0])}
    expected = run(_Squares(), batch, 2)
    assert differences(run(_Squares(), batch, 2), expected, lambda: expected) == []
    double = {"x": batch["x"].double()}
    found = differences(
        run(_Squares(slip=1e-3), batch, 2), expected, lambda: run(_Squares().double(), double, 2)
    )
    complaints = {complaint.partition(":")[0] for complaint in found}
    assert {"output 1", "loss 0", "gradient of weight"} <= complaints
