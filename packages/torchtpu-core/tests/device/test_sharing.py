# SPDX-License-Identifier: Apache-2.0
"""Written tensors that share memory with operands, or with themselves, are taken as on CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

#: A call on the elements 0 to 5 that CPU refuses.
REFUSED: dict[str, Callable[[torch.Tensor], object]] = {
    "copy_ of a shifted view": lambda x: x[1:].copy_(x[:-1]),
    "copy_ of an element": lambda x: x.copy_(x[0]),
    "add_ of a shifted view": lambda x: x[1:].add_(x[:-1]),
    "add_ of an element": lambda x: x.add_(x[0]),
    "eq_ of a shifted view": lambda x: x[1:].eq_(x[:-1]),
    "mul_ of the transpose": lambda x: x[:4].view(2, 2).mul_(x[:4].view(2, 2).t()),
    "lerp_ with a shifted end": lambda x: x[1:].lerp_(x[:-1], 0.5),
    "neg into a shifted view": lambda x: torch.neg(x[:-1], out=x[1:]),
    "where into a shifted view": lambda x: torch.where(x[:-1] > 2, x[:-1], x[:-1], out=x[1:]),
    "cumsum into a shifted view": lambda x: torch.cumsum(x[:-1], 0, out=x[1:]),
    "index_add_ of itself": lambda x: x.index_add_(0, torch.arange(6, device=x.device), x),
    "index_copy_ of itself": lambda x: x.index_copy_(0, torch.arange(6, device=x.device), x),
    "scatter_ of itself": lambda x: x.scatter_(0, torch.arange(6, device=x.device), x),
    "put_ of a part": lambda x: x.put_(torch.tensor([0], device=x.device), x[:1]),
    "index_put_ of a part": lambda x: x.index_put_((torch.tensor([0], device=x.device),), x[1]),
    "gather into its operand": lambda x: torch.gather(
        x, 0, torch.arange(6, device=x.device), out=x
    ),
    "cat into its operand": lambda x: torch.cat([x[:3], x[3:]], out=x),
    "masked_select into a shifted view": lambda x: torch.masked_select(
        x[:-1], torch.ones(5, dtype=torch.bool, device=x.device), out=x[1:]
    ),
    "copy_ to an expanded tensor": lambda x: x[:1].expand(3).copy_(x[3:]),
    "add_ to an expanded tensor": lambda x: x[:1].expand(3).add_(1),
    "index_copy_ to an expanded tensor": lambda x: (
        x[:1].expand(3).index_copy_(0, torch.arange(3, device=x.device), x[3:])
    ),
}

#: A call that CPU takes.
TAKEN: dict[str, Callable[[torch.Tensor], object]] = {
    "add_ of itself": lambda x: x.add_(x),
    "add into its operand": lambda x: torch.add(x, 1, out=x),
    "cumsum into its operand": lambda x: torch.cumsum(x, 0, out=x),
    "add_ of the other half": lambda x: x[:3].add_(x[3:]),
    "copy_ of the other half": lambda x: x[:3].copy_(x[3:]),
    "copy_ of itself": lambda x: x.copy_(x),
    "fill_ of an expanded tensor": lambda x: x[:1].expand(3).fill_(7),
    "fill_ with an element": lambda x: x.fill_(x[2]),
    "fill_ of overlapping windows": lambda x: x[1:].unfold(0, 2, 1).fill_(7),
    "zero_ of an expanded tensor": lambda x: x[1:2].expand(3).zero_(),
    "masked_fill_ with an element": lambda x: x.masked_fill_(x > 2, x[1]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_shared_memory_that_cpu_refuses_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError) as expected:
        REFUSED[name](torch.arange(6.0))
    x = torch.arange(6.0, device="tpu")
    with pytest.raises(RuntimeError) as raised:
        REFUSED[name](x)
    assert str(raised.value).startswith(str(expected.value)[:60])
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("name", TAKEN)
def test_shared_memory_that_cpu_takes_gives_cpus_values(name: str) -> None:
    expected, x = torch.arange(6.0), torch.arange(6.0, device="tpu")
    TAKEN[name](expected)
    TAKEN[name](x)
    assert x.tolist() == expected.tolist()
