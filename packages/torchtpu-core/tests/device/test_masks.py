# SPDX-License-Identifier: Apache-2.0
"""Masks that do not fit the tensor they index are refused at the call, as on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

MASKS = {
    "one element": torch.tensor([True]),
    "too long": torch.tensor([False] * 6),
    "two dimensions": torch.zeros(4, 4, dtype=torch.bool),
}
USES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "read": lambda x, mask: x[mask],
    "read a later dimension": lambda x, mask: x[:, mask],
    "write": lambda x, mask: x.__setitem__(mask, 1.0),
    "write through two indices": lambda x, mask: x.__setitem__((mask, 0), 1.0),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("mask", MASKS)
def test_mask_of_another_shape_raises_cpus_error_and_changes_nothing(mask: str, use: str) -> None:
    host = torch.ones(5, 4, 3)
    with pytest.raises(IndexError) as expected:
        USES[use](host, MASKS[mask])
    device = host.to("tpu")
    with pytest.raises(IndexError) as raised:
        USES[use](device, MASKS[mask].to("tpu"))
    assert str(raised.value).startswith(str(expected.value).split(". ")[0])
    assert device.cpu().equal(host)


def test_byte_mask_warns_and_reads_as_a_mask() -> None:
    x = torch.arange(3, device="tpu")
    with pytest.warns(UserWarning, match="torch.uint8 is now deprecated"):
        picked = x[torch.tensor([0, 1, 1], dtype=torch.uint8, device="tpu")]
    assert picked.tolist() == [1, 2]


TOO_FEW: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
    "assignment": lambda x, mask, values: x.__setitem__(mask, values),
    "accumulation": lambda x, mask, values: x.index_put_((mask,), values, accumulate=True),
    "masked_scatter_": lambda x, mask, values: x.masked_scatter_(mask, values),
}


@pytest.mark.parametrize("write", TOO_FEW)
def test_too_few_values_name_the_line_and_change_nothing(write: str) -> None:
    x = torch.arange(6.0, device="tpu")
    with pytest.raises(RuntimeError, match=r"called at .*test_masks\.py:"):
        TOO_FEW[write](x, x > 2, torch.ones(2, device="tpu"))
        torch.tpu.synchronize()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("shape", [(2, 2, 3), (4, 3, 1), (2, 4)])
def test_values_that_fit_no_number_of_chosen_rows_are_refused_at_the_call(shape: tuple) -> None:
    x, mask = torch.zeros(4, 3, device="tpu"), torch.tensor([True, False, True, False])
    with pytest.raises(RuntimeError, match="shape mismatch: value tensor of shape") as raised:
        x[mask.to("tpu")] = torch.ones(shape, device="tpu")
    assert "indexing result of shape [n, 3]" in str(raised.value)
    assert x.cpu().equal(torch.zeros(4, 3))


@pytest.mark.parametrize("chosen", [False, True])
def test_values_of_another_dtype_are_refused_for_their_dtype(chosen: bool) -> None:
    x = torch.arange(6.0, device="tpu")
    values = x[x > 2] if chosen else torch.ones(3, device="tpu")
    with pytest.raises(RuntimeError, match=r"dtypes match, got Float .* and Double"):
        x[x > 2] = values.double()
    assert x.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
