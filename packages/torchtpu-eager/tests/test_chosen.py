# SPDX-License-Identifier: Apache-2.0
"""What a mask chooses is computed and written back without counting it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor


@pytest.fixture(autouse=True)
def _fused() -> Iterator[None]:
    torch.tpu.init()
    with torch.tpu.set_eager_mode("fused"):
        yield


def _host_reads() -> int:
    torch.tpu.synchronize()
    count: int = torch.tpu.counters()["flushes"].get("host read", 0)
    return count


def _scaled(x: Tensor) -> Tensor:
    x[x > 0.5] *= 0.9
    return x


def _added(x: Tensor) -> Tensor:
    x[x < 0] += x.mean()
    return x


def _clipped(x: Tensor) -> Tensor:
    mask = x.abs() > 1
    x[mask] = x[mask].clamp(-1, 1).sqrt().nan_to_num(0.25)
    return x


def _of_masks_made_twice(x: Tensor) -> Tensor:
    x[~(x > 0)] = -x[~(x > 0)] * 2
    return x


def _columns(x: Tensor) -> Tensor:
    x[:, x[0] > 0] *= 2
    return x


def _one_column(x: Tensor) -> Tensor:
    x[:, :1][:, x[0, :1] > -9] *= 2
    return x


def _rows(x: Tensor) -> Tensor:
    x[x.sum(1) > 0] *= torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
    return x


def _of_another(x: Tensor) -> Tensor:
    y, mask = x.flip(0), x > 0
    x[mask] += y[mask] / 3
    return x


def _nothing(x: Tensor) -> Tensor:
    x[x > 100] *= 2
    return x


def _part(x: Tensor) -> Tensor:
    part = x.t()[1:3]
    part[part > 0] -= 5
    return x


def _copy_is_apart(x: Tensor) -> Tensor:
    kept = x[x > 0]
    kept.mul_(2)
    return x


def _as_it_was(x: Tensor) -> Tensor:
    mask = x > 0
    kept = x[mask]
    x.add_(1)
    x[mask] = kept * 2
    return x


WAYS = [
    *(_scaled, _added, _clipped, _of_masks_made_twice, _columns, _one_column, _rows),
    *(_of_another, _nothing, _part, _copy_is_apart, _as_it_was),
]


@pytest.mark.parametrize("way", WAYS)
def test_elements_of_a_mask_change_in_place_without_a_host_read(
    way: Callable[[Tensor], Tensor],
) -> None:
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))
    on_device = x.to("tpu")
    before = _host_reads()
    result = way(on_device)
    assert _host_reads() == before
    torch.testing.assert_close(result.cpu(), way(x))


def test_whole_numbers_of_a_mask_change_in_place() -> None:
    def way(x: Tensor) -> Tensor:
        x[x % 2 == 0] += 3
        x[x > 4] //= x[x > 4] - 4  # where it is not chosen, it would divide by zero
        return x

    x = torch.arange(12)
    torch.testing.assert_close(way(x.to("tpu")).cpu(), way(x))


def _views_and_sums(x: Tensor) -> tuple[object, ...]:
    chosen = x[x > 0] * 2
    return (chosen.view(-1, 1).sum().item(), chosen.shape, type(chosen.shape[0]), len(chosen))


def _storages(x: Tensor) -> tuple[object, ...]:
    chosen = x[x > 0]
    whole = chosen.untyped_storage().nbytes()
    return (whole, chosen.data.tolist(), chosen.stride(), chosen.is_contiguous())


def _many(x: Tensor) -> tuple[object, ...]:
    mask = x > 0
    chosen = x[mask]
    both = torch.cat([chosen, x[~mask]]).tolist()
    return (
        both,
        chosen.numel(),
        chosen.ndim,
        copy.deepcopy(x[mask]).tolist(),
        (x[mask] + chosen).tolist(),
    )


def _reads_later(x: Tensor) -> tuple[object, ...]:
    mask = x > 0
    chosen = x[mask]
    x.zero_()
    mask.logical_not_()
    return (chosen.tolist(), x.tolist())


def _written_elsewhere(x: Tensor) -> tuple[object, ...]:
    mask = x > 0
    other, flags = torch.zeros_like(x), torch.zeros_like(mask)
    other[mask.roll(1, 0)] = x[mask]
    other[x.roll(1, 0) > 0] += x[mask]
    flags[mask] = x[mask] > 1
    return (other.tolist(), flags.tolist())


@pytest.mark.parametrize(
    "read", [_views_and_sums, _storages, _many, _reads_later, _written_elsewhere]
)
def test_whatever_needs_the_sizes_gets_them(read: Callable[[Tensor], tuple[object, ...]]) -> None:
    x = torch.arange(-4.0, 6.0)
    assert read(x.to("tpu")) == read(x)


def test_gradients_pass_through_what_was_chosen() -> None:
    def gradient(x: Tensor) -> Tensor:
        weight = torch.full((1,), 2.0, device=x.device, requires_grad=True)
        chosen = x[x > 0]
        (weight * chosen + chosen.square()).sum().backward()
        assert weight.grad is not None
        return weight.grad

    x = torch.arange(-4.0, 6.0)
    torch.testing.assert_close(gradient(x.to("tpu")).cpu(), gradient(x))


def test_shapes_that_do_not_fit_are_refused_at_the_call() -> None:
    x = torch.arange(-4.0, 6.0, device="tpu")
    with pytest.raises(IndexError, match="shape of the mask"):
        x[torch.ones(3, dtype=torch.bool, device="tpu")] *= 2
    with pytest.raises(RuntimeError, match="size of tensor a"):
        x[x > 0] += torch.ones(3, device="tpu")


def test_a_leaf_that_needs_a_gradient_is_refused_as_on_the_cpu() -> None:
    x = torch.ones(4, device="tpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf"):
        x[x > 0] *= 2
    with torch.no_grad():
        x[x > 0] *= 2
    assert x.tolist() == [2.0] * 4
