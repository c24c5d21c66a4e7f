# SPDX-License-Identifier: Apache-2.0
"""Numbers that vary are operands: a loop compiles what its first two rounds compile."""

from __future__ import annotations

import pytest
import torch

F = torch.nn.functional
ROUNDS = 16
#: Programs that a loop over one operator may compile.
MOST = 2


def _matrix() -> torch.Tensor:
    return torch.ones(32, 32, device="tpu")


#: One round of a loop: of a matrix `(32, 32)`, a vector `(32,)` and the round's number.
_LOOPS = {
    "x[i]": lambda x, b, i: x[i].clone(),
    "x[-i]": lambda x, b, i: x[-i - 1].clone(),
    "x[i:i+4]": lambda x, b, i: x[i : i + 4].clone(),
    "x[i:i+8:2]": lambda x, b, i: x[i : i + 8 : 2].clone(),
    "x[i, j]": lambda x, b, i: x[i, i + 2].clone(),
    "x[..., i]": lambda x, b, i: x[..., i].clone(),
    "x.t()[i]": lambda x, b, i: x.t()[i].clone(),
    "narrow": lambda x, b, i: x.narrow(0, i, 3).clone(),
    "b[i] = 1": lambda x, b, i: b.__setitem__(i, 1.0),
    "x[i:i+2] = 2": lambda x, b, i: x.__setitem__(slice(i, i + 2), 2.0),
    "x[:, i] = b": lambda x, b, i: x.__setitem__((slice(None), i), b),
    "x[[i, i + 1]]": lambda x, b, i: x[[i, i + 1]],
    "x + number": lambda x, b, i: x + (i + 0.5),
    "x * integer": lambda x, b, i: x * (i + 7),
    "x ** number": lambda x, b, i: x ** (i + 3.5),
    "number ** x": lambda x, b, i: (i + 1.5) ** x,
    "x > number": lambda x, b, i: x > i + 0.5,
    "x // integer": lambda x, b, i: x // (i + 2),
    "clamp": lambda x, b, i: x.clamp(-i - 0.5, i + 0.5),
    "full": lambda x, b, i: torch.full((4,), i + 0.5, device="tpu"),
    "fill_": lambda x, b, i: b.fill_(i + 0.5),
    "masked_fill": lambda x, b, i: b.masked_fill(b > 0, i + 0.5),
    "arange(i, i + 8)": lambda x, b, i: torch.arange(i, i + 8, device="tpu"),
    "arange of floats": lambda x, b, i: torch.arange(i + 0.5, i + 8.5, device="tpu"),
    "linspace": lambda x, b, i: torch.linspace(i, i + 3.5, 8, device="tpu"),
    "roll": lambda x, b, i: b.roll(i + 1),
    "tril": lambda x, b, i: x.tril(i),
    "dropout": lambda x, b, i: F.dropout(b, 0.1 + i / 50),
    "layer_norm": lambda x, b, i: F.layer_norm(x, (32,), eps=1e-4 * (i + 1)),
    "leaky_relu": lambda x, b, i: F.leaky_relu(b, 0.01 * (i + 1)),
    "huber_loss": lambda x, b, i: F.huber_loss(b, b, delta=i + 0.5),
    "nan_to_num": lambda x, b, i: torch.nan_to_num(b, nan=i + 0.5),
    "uniform_": lambda x, b, i: b.uniform_(-i - 1.0, i + 1.0),
    "randint": lambda x, b, i: torch.randint(0, i + 5, (8,), device="tpu"),
}


@pytest.mark.parametrize("once", _LOOPS.values(), ids=_LOOPS)
def test_loop_over_numbers_compiles_at_most_two_programs(once):
    matrix, vector = _matrix(), torch.ones(32, device="tpu")
    torch.tpu.synchronize()
    before = torch.tpu.counters()["compiles"]
    for i in range(ROUNDS):
        once(matrix, vector, i)
        torch.tpu.synchronize()
    assert torch.tpu.counters()["compiles"] - before <= MOST


def test_list_of_numbers_that_repeats_is_one_operand_with_the_same_results():
    def added(*numbers: float) -> list[float]:
        tensors = [torch.zeros(3, device="tpu") for _ in numbers]
        return [t[0].item() for t in torch._foreach_add(tensors, numbers)]

    for numbers in ((1.5, 1.5, 1.5), (1.5, 2.5, 1.5)):
        assert added(*numbers) == list(numbers)
    before = torch.tpu.counters()["compiles"]
    for numbers in ((3.5, 3.5, 3.5), (4.5, 2.5, 0.5)):
        assert added(*numbers) == list(numbers)
    assert torch.tpu.counters()["compiles"] == before


def test_optimizer_with_a_schedule_compiles_nothing_after_its_second_step():
    weight = torch.nn.Parameter(_matrix())
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    for i in range(ROUNDS):
        optimizer.param_groups[0]["lr"] = 0.1 / (i + 1)
        optimizer.step()
        torch.tpu.synchronize()
        if i == 1:
            before = torch.tpu.counters()["compiles"]
    assert torch.tpu.counters()["compiles"] == before


@pytest.mark.parametrize(
    ("start", "end", "step"), [(3, 20, 4), (0.5, 7.25, 0.75), (9, -3, -2), (5, 5, 1), (0, 7, 3)]
)
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_arange_of_the_same_length_as_one_before_has_its_own_numbers(start, end, step, dtype):
    torch.arange(start + 2, end + 2, step, device="tpu", dtype=dtype)
    actual = torch.arange(start, end, step, device="tpu", dtype=dtype)
    assert torch.equal(actual.cpu(), torch.arange(start, end, step, dtype=dtype))


def test_arange_with_a_wrong_sign_after_a_right_one_raises():
    torch.arange(0, 5, 1, device="tpu")
    with pytest.raises(RuntimeError, match="step sign"):
        torch.arange(0, 5, -1, device="tpu")


def test_integer_power_of_a_negative_number_after_a_positive_one_raises():
    x = torch.full((3,), 2, device="tpu")
    assert (x**5).tolist() == [32, 32, 32]
    with pytest.raises(RuntimeError, match="negative integer powers"):
        (x**-5).cpu()


@pytest.mark.parametrize("shifts", [0, 1, -3, 40])
def test_roll_equals_cpu(shifts):
    x = torch.arange(12.0).reshape(3, 4)
    assert torch.equal(x.to("tpu").roll(shifts).cpu(), x.roll(shifts))
    assert torch.equal(x.to("tpu").roll((shifts, 1), (0, 1)).cpu(), x.roll((shifts, 1), (0, 1)))
