# SPDX-License-Identifier: Apache-2.0
"""Shapes that are kept against those of PyTorch's fake mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchtpu_core.plan.shapes import Shapes

aten = torch.ops.aten


class Counted(Shapes):
    """Counts how often the mode was asked."""

    asked = 0

    def _ask(self, *call: Any) -> Any:
        self.asked += 1
        return super()._ask(*call)


@pytest.fixture
def shapes() -> Counted:
    return Counted()


def made(shapes: Shapes, *size: int, dtype: torch.dtype = torch.float32) -> FakeTensor:
    with shapes.mode:
        return torch.empty(size, dtype=dtype, device="tpu")


def seen(tensor: FakeTensor) -> tuple[Any, ...]:
    return (
        *(tensor.dtype, tensor.fake_device, tensor.shape, tensor.stride()),
        tensor.storage_offset(),
        tensor.untyped_storage().nbytes(),
    )


OPERATORS: dict[str, Callable[[Any, Any], tuple[Any, tuple[Any, ...], dict[str, Any]]]] = {
    "sum of two": lambda x, y: (aten.add.Tensor, (x, y), {"alpha": 2}),
    "product": lambda x, y: (aten.mm.default, (x, y), {}),
    "sum over a dimension": lambda x, y: (aten.sum.dim_IntList, (x, [1], True), {}),
    "several": lambda x, y: (aten.max.dim, (x, 0), {}),
    "norm": lambda x, y: (aten.native_layer_norm.default, (x, [8], None, None, 1e-5), {}),
    "joined": lambda x, y: (aten.cat.default, ([x, y, x], 1), {}),
    "cast": lambda x, y: (aten._to_copy.default, (x,), {"dtype": torch.bfloat16}),
    "transposed": lambda x, y: (aten.t.default, (x,), {}),
    "reshaped": lambda x, y: (aten._unsafe_view.default, (x, [4, 16]), {}),
    "part": lambda x, y: (aten.slice.Tensor, (x, 0, 2, 6), {}),
    "pieces": lambda x, y: (aten.split.Tensor, (x, 3), {}),
    "expanded": lambda x, y: (aten.expand.default, (aten.select.int(x, 0, 3), [5, 8]), {}),
    "in place": lambda x, y: (aten.mul_.Tensor, (x, y), {}),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_second_result_is_as_the_first(shapes, name) -> None:
    x, y = made(shapes, 8, 8), made(shapes, 8, 8)
    with shapes.mode:
        func, args, kwargs = OPERATORS[name](x, y)
    first = shapes.run(func, (), args, kwargs)
    second = shapes.run(func, (), args, kwargs)
    assert shapes.asked == 1
    both = [one if isinstance(one, (list, tuple)) else [one] for one in (first, second)]
    assert [seen(one) for one in both[0]] == [seen(one) for one in both[1]]
    storages = [[one.untyped_storage()._cdata for one in each] for each in both]
    inside = x.untyped_storage()._cdata
    assert [s == inside for s in storages[0]] == [s == inside for s in storages[1]]
    assert (first is x) == (second is x) == (name == "in place")


def test_numbers_of_another_type_are_other_operands(shapes) -> None:
    whole = made(shapes, 3, dtype=torch.int32)
    kinds = [shapes.run(aten.add.Tensor, (), (whole, one), {}).dtype for one in (1, True, 1.0)]
    assert kinds == [torch.int32, torch.int32, torch.float32]


def test_new_tensor_is_of_the_default_dtype_of_the_moment(shapes) -> None:
    call = aten.ones.default, (), ([2],), {"device": torch.device("tpu")}
    before, found = torch.get_default_dtype(), []
    try:
        for dtype in (torch.float32, torch.bfloat16, torch.float32):
            torch.set_default_dtype(dtype)
            found.append(shapes.run(*call).dtype)
    finally:
        torch.set_default_dtype(before)
    assert found == [torch.float32, torch.bfloat16, torch.float32] and shapes.asked == 2


def test_part_at_another_place_has_its_own_offset(shapes) -> None:
    x = made(shapes, 6, 4)
    later = shapes.run(aten.slice.Tensor, (), (x, 0, 2, 6), {})
    assert shapes.run(aten.select.int, (), (later, 0, 1), {}).storage_offset() == 12
    same_size = made(shapes, 4, 4)
    assert shapes.run(aten.select.int, (), (same_size, 0, 1), {}).storage_offset() == 4


def test_result_that_depends_on_values_is_refused_each_time(shapes) -> None:
    for _ in range(2):
        with pytest.raises(torch._subclasses.fake_tensor.DynamicOutputShapeException):
            shapes.run(aten.nonzero.default, (), (made(shapes, 4),), {})


def test_operands_that_do_not_fit_are_refused_each_time(shapes) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="same reduction dim"):
            shapes.run(aten.mm.default, (), (made(shapes, 2, 3), made(shapes, 2, 3)), {})


def test_modes_of_the_user_see_nothing_of_a_kept_result(shapes) -> None:
    class Told(TorchDispatchMode):  # type: ignore[misc]
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            self.calls += 1
            return func(*args, **(kwargs or {}))

    x = made(shapes, 4)
    shapes.run(aten.relu.default, (), (x,), {})
    with Told() as told:
        shapes.run(aten.relu.default, (), (x,), {})
    assert told.calls == 0


def test_views_in_inference_mode_are_tensors_of_it_only_if_their_base_is(shapes) -> None:
    before = made(shapes, 4, 4)
    with torch.inference_mode():
        inside = shapes.run(aten.ones.default, (), ([4, 4],), {"device": torch.device("tpu")})
        for _ in range(2):
            views = [shapes.run(aten.t.default, (), (x,), {}) for x in (before, inside)]
            assert [view.is_inference() for view in views] == [False, True]
