# SPDX-License-Identifier: Apache-2.0
"""Equal numbers from the host share an operand of a compiled graph, and differ when they differ."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchtpu_compile.equal_scalars import EqualScalars, spread


def test_scalars_share_an_operand_while_they_are_equal() -> None:
    equal = EqualScalars([torch.float32] * 8)
    assert equal.operands_of([1.0] * 7 + [2.0]) == [1.0, 2.0]
    assert equal.operands == (0,) * 7 + (1,)
    assert equal.operands_of([3.0] * 8) == [3.0, 3.0]
    different = [3.0] * 6 + [4.0, 2.0]
    assert equal.operands_of(different) == different
    assert equal.operands_of([1.0] * 8) == [1.0] * 8
    assert equal.operands is None


@pytest.mark.parametrize(
    "scalars",
    [[1.0] * 7, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 5.0, 5.0], [float("nan")] * 8],
    ids=["few", "mostly different", "nan"],
)
def test_scalars_that_share_nothing(scalars: list[float]) -> None:
    equal = EqualScalars([torch.float32] * len(scalars))
    assert equal.operands_of(scalars) is scalars
    assert equal.operands is None


def test_scalars_of_different_types_are_different() -> None:
    equal = EqualScalars([torch.float32, torch.float64] * 4)
    assert equal.operands_of([1.0] * 8) == [1.0, 1.0]
    assert equal.operands == (0, 1) * 4


def test_zeros_of_different_sign_are_different() -> None:
    equal = EqualScalars([torch.float64] * 8)
    assert equal.operands_of([0.0] * 6 + [-0.0] * 2) == [0.0, -0.0]
    assert equal.operands == (0,) * 6 + (1,) * 2
    swapped = [0.0] * 5 + [-0.0] * 3
    assert equal.operands_of(swapped) is swapped


def test_a_function_of_all_scalars_takes_the_operands() -> None:
    assert spread(lambda arrays, *scalars: (arrays, scalars), (0, 1, 0))([9], 5, 6) == (
        [9],
        (5, 6, 5),
    )


def tower() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(6)])


def test_optimizer_whose_counts_come_to_differ() -> None:
    """The counts are equal for three steps; then two parameters are older than the others."""
    inputs = [torch.randn(3, 4) for _ in range(6)]
    found, counted = [], []
    for device in ("cpu", "tpu"):
        model = tower().to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def step(x: Tensor, model: nn.Module = model, own: torch.optim.AdamW = optimizer) -> None:
            own.zero_grad()
            model(x).square().sum().backward()
            own.step()

        run = torch.compile(step, backend="tpu") if device == "tpu" else step
        for number, x in enumerate(inputs):
            if number == 3:
                for parameter in list(model.parameters())[:2]:
                    optimizer.state[parameter]["step"].add_(40)
            run(x.to(device))
            if device == "tpu":
                torch.tpu.synchronize()
                counted.append(torch.tpu.counters()["compiles"])
        found.append([p.detach().cpu() for p in model.parameters()])
    for mine, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(mine, expected)
    assert counted[3] > counted[2], "the counts differ: another program"
    assert counted[4] == counted[5], "which serves from then on"


def test_numbers_of_a_function() -> None:
    def weigh(x: Tensor, numbers: list[Tensor]) -> Tensor:
        return sum(x * n for n in numbers)  # type: ignore[return-value]

    compiled = torch.compile(weigh, backend="tpu", fullgraph=True)
    x = torch.randn(3)
    for numbers in ([2.0] * 9, [5.0] * 9, [*range(9)], [0.0] * 8 + [-0.0]):
        tensors = [torch.tensor(float(n)) for n in numbers]
        torch.testing.assert_close(compiled(x.to("tpu"), tensors).cpu(), weigh(x, tensors))
