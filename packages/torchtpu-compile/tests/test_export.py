# SPDX-License-Identifier: Apache-2.0
"""StableHLO of a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torchtpu_compile.errors import GraphError
from torchtpu_compile.export import export_stablehlo
from torchtpu_core.simulator.stablehlo import program_cost


def test_module_text_has_parameters_then_inputs() -> None:
    model = nn.Linear(3, 2)
    text = export_stablehlo(model, (torch.ones(5, 3),))
    header = next(line for line in text.splitlines() if "@main" in line)
    types = ["tensor<2x3xf32>", "tensor<2xf32>", "tensor<5x3xf32>"]
    positions = [header.index(t) for t in types]
    assert positions == sorted(positions)
    assert "stablehlo.dot_general" in text
    assert model.weight.device.type == "cpu"


def test_text_can_be_priced_by_the_simulator() -> None:
    text = export_stablehlo(nn.Linear(64, 32, bias=False), (torch.ones(16, 64),))
    assert sum(program_cost(text).matmul_flops.values()) == 2 * 16 * 64 * 32


def test_model_with_dropout_is_refused_until_it_is_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    with pytest.raises(GraphError, match=r"eval\(\)"):
        export_stablehlo(model, (torch.ones(2, 3),))
    assert "dot_general" in export_stablehlo(model.eval(), (torch.ones(2, 3),))


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_that_drops_nothing_is_in_the_module(is_causal: bool) -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(x, x, x, is_causal=is_causal)

    text = export_stablehlo(Attention(), (torch.ones(2, 2, 8, 4),))
    header = next(line for line in text.splitlines() if "@main" in line)
    assert header.count("tensor<2x2x8x4xf32>") == 2
    assert "stablehlo.dot_general" in text


def test_op_without_lowering_names_the_line() -> None:
    class Eigen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(x)

    with pytest.raises(GraphError, match=r"eig.*test_export\.py"):
        export_stablehlo(Eigen(), (torch.ones(3, 3),))


def test_operations_carry_the_models_line() -> None:
    class Doubled(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin() * 2

    assert "test_export.py:" in export_stablehlo(Doubled(), (torch.ones(3),))


def test_module_is_written_as_text_or_as_portable_bytecode(tmp_path: Path) -> None:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    model, args = nn.Sequential(nn.Linear(3, 2), nn.GELU()), (torch.ones(5, 3),)
    text = export_stablehlo(model, args, path=tmp_path / "linear.mlir")
    assert (tmp_path / "linear.mlir").read_text() == text
    export_stablehlo(model, args, path=tmp_path / "linear.mlirbc")
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(
            context, (tmp_path / "linear.mlirbc").read_bytes()
        )
        assert "stablehlo.dot_general" in str(module)


def test_file_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="mlirbc"):
        export_stablehlo(nn.ReLU(), (torch.ones(3),), path="model.pt")


def test_branch_on_values_is_an_error_with_the_line_and_the_fix() -> None:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                return x
            return -x

    with pytest.raises(GraphError, match=r"test_export\.py:\d+ in forward.*torch\.where"):
        export_stablehlo(Branch(), (torch.ones(2),))
