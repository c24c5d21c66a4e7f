# SPDX-License-Identifier: Apache-2.0
"""Views share storage as on CPU: any chain of views and writes gives CPU's values."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torchtpu_core.lowering import storage_views

_SIZE = 24
_VIEWS = (
    "slice",
    "select",
    "transpose",
    "view",
    "unsqueeze",
    "diagonal",
    "expand",
    "strided",
    "dtype",
)
_WRITES = ("add_", "fill_", "copy_", "set_row", "mul_whole")


@st.composite
def _steps(draw):
    """A list of (kind, three numbers); the numbers are fitted to the tensor when applied."""
    kinds = st.sampled_from(_VIEWS + _WRITES)
    return draw(st.lists(st.tuples(kinds, *[st.integers(0, 7)] * 3), min_size=1, max_size=6))


def _view(x, kind, a, b, c):
    """`x` seen another way, or None where the kind does not apply."""
    dim = a % x.ndim if x.ndim else 0
    size = x.shape[dim] if x.ndim else 1
    packed = x.is_contiguous()
    if kind == "slice" and x.ndim:
        start = b % size
        end = start + 1 + c % (size - start)
        return x[(slice(None),) * dim + (slice(start, end, 1 + c % 2),)]
    if kind == "select" and x.ndim > 1:
        return x.select(dim, b % size)
    if kind == "transpose" and x.ndim:
        return x.transpose(dim, b % x.ndim)
    if kind == "view" and packed and x.numel() % 2 == 0:
        return x.view(2, x.numel() // 2)
    if kind == "unsqueeze" and x.ndim < 4:
        return x.unsqueeze(dim)
    if kind == "diagonal" and x.ndim == 2:
        return x.diagonal(0)
    if kind == "expand" and x.ndim and size == 1:
        return x.expand(*x.shape[:dim], 2, *x.shape[dim + 1 :])
    if kind == "strided" and x.numel() >= 4 and packed:
        return x.as_strided((2, 2), (2, 1), x.storage_offset())
    if kind == "dtype" and x.ndim and packed and (x.dtype == torch.int32 or _pairs(x)):
        return x.view(torch.int16 if x.dtype == torch.int32 else torch.int32)
    return None


def _pairs(x):
    """Whether int16 elements can be read as int32."""
    return x.shape[-1] % 2 == 0 and x.storage_offset() % 2 == 0


def _overlaps(x):
    return any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))


def _write(base, x, kind, a):
    if kind == "mul_whole":
        base.mul_(2)
    elif _overlaps(x):
        return
    elif kind == "add_":
        x.add_(x if a % 2 else 1)
    elif kind == "fill_":
        x.fill_(a)
    elif kind == "copy_":
        x.copy_(x.clone().flip(0) if x.ndim else x.clone())
    elif kind == "set_row" and x.ndim:
        x[0] = a


def _apply(device, steps):
    base = torch.arange(_SIZE, dtype=torch.int32).to(device)
    x = base.view(2, 3, 4)
    for kind, a, b, c in steps:
        if kind in _WRITES:
            _write(base, x, kind, a)
        else:
            seen = _view(x, kind, a, b, c)
            x = x if seen is None else seen
    return base.cpu(), x.cpu(), (x.shape, x.stride(), x.storage_offset())


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(_steps())
def test_random_views_and_writes_match_cpu(steps):
    base, seen, layout = _apply("tpu", steps)
    expected_base, expected_seen, expected_layout = _apply("cpu", steps)
    assert layout == expected_layout
    assert torch.equal(base, expected_base)
    assert torch.equal(seen, expected_seen)


def test_view_shares_the_storage():
    x = torch.zeros(2, 3, device="tpu")
    assert x.view(3, 2).untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert x[1]._base is x


def test_write_through_a_view_is_seen_by_the_base_and_its_other_views():
    x = torch.zeros(2, 3, device="tpu")
    column, row = x[:, 1], x[1]
    column.fill_(5)
    assert row.tolist() == [0.0, 5.0, 0.0]
    assert x.tolist() == [[0.0, 5.0, 0.0], [0.0, 5.0, 0.0]]


def test_view_of_another_dtype_reads_the_bits():
    x = torch.tensor([1.0, -2.0], device="tpu")
    expected = torch.tensor([1.0, -2.0])
    for dtype in (torch.int32, torch.int16, torch.uint8):
        assert x.view(dtype).tolist() == expected.view(dtype).tolist()


def test_write_through_a_view_of_another_dtype_changes_the_bits():
    x = torch.tensor([1.0, 2.0], device="tpu")
    x.view(torch.int32)[1] = 0
    assert x.tolist() == [1.0, 0.0]


def test_real_view_of_complex_writes_through():
    x = torch.zeros(2, dtype=torch.complex64, device="tpu")
    x.imag.fill_(3)
    torch.view_as_real(x)[0, 0] = 2
    assert x.tolist() == [2 + 3j, 3j]


def test_conjugate_view_reads_and_writes():
    x = torch.tensor([1 + 2j, 3 - 1j], device="tpu")
    conjugate = x.conj()
    assert conjugate.is_conj()
    assert conjugate.tolist() == [1 - 2j, 3 + 1j]
    conjugate[0] = 5 + 5j
    assert x[0].item() == 5 - 5j


def test_negative_view_reads():
    x = torch.tensor([1 + 2j, 3 - 1j], device="tpu")
    assert x.conj().imag.tolist() == [-2.0, 1.0]


def test_expanded_tensor_refuses_in_place_writes():
    x = torch.zeros(1, device="tpu").expand(3)
    with pytest.raises(RuntimeError, match="more than one element"):
        x.add_(1)


def test_view_with_incompatible_strides_is_refused():
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        torch.zeros(2, 3, device="tpu").t().view(6)


def test_unfold_reads_overlapping_windows():
    x = torch.arange(5.0, device="tpu")
    assert x.unfold(0, 3, 1).tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_split_and_chunk_alias():
    x = torch.arange(4.0, device="tpu")
    first, second = x.chunk(2)
    second.zero_()
    assert x.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert first.tolist() == [0.0, 1.0]


def test_set_and_resize_follow_the_storage():
    x = torch.arange(4.0, device="tpu")
    y = torch.empty(0, device="tpu").set_(x)
    y[0] = 9
    assert x.tolist() == [9.0, 1.0, 2.0, 3.0]
    x.resize_(2)
    assert x.tolist() == [9.0, 1.0]
    x.resize_(6)
    assert x[:4].tolist() == [9.0, 1.0, 2.0, 3.0]


def test_detach_and_data_share_the_storage():
    x = torch.zeros(2, device="tpu", requires_grad=True)
    x.data.fill_(3)
    x.detach()[0] = 4
    assert x.tolist() == [4.0, 3.0]


def test_in_place_write_through_a_view_without_a_box_lands_where_cpu_writes():
    """Rows of 20 seen as two of 9 from the third on: strides that do not divide each other."""
    outs = []
    for device in ("cpu", "tpu"):
        x = torch.arange(80.0, device=device).reshape(4, 20)
        view = x[:, 2:].reshape(4, 2, 9)
        assert view.stride() == (20, 9, 1)
        view.mul_(2)
        torch.add(view, 1, out=view)
        outs.append((x.cpu(), view.cpu()))
    assert torch.equal(outs[1][0], outs[0][0])
    assert torch.equal(outs[1][1], outs[0][1])


def test_one_token_is_read_and_written_in_the_shape_of_its_tensor(monkeypatch):
    """Shaped as `[B, T * D]` a TPU would move all of it; a token at another place is no program."""
    read, seen = storage_views.read, []

    def spy(value, base, view, plan, starts):
        seen.append((plan.radix, plan.extents))
        return read(value, base, view, plan, starts)

    monkeypatch.setattr(storage_views, "read", spy)
    x = torch.arange(3.0 * 17 * 19).view(3, 17, 19)
    on_tpu = x.to("tpu")
    for token in (0, 5, 16):
        assert torch.equal((on_tpu[:, token] * 2).cpu(), x[:, token] * 2)
    assert [one for one in seen if one[0]] == [((3, 17, 19), (3, 1, 19))]
    flat = on_tpu.view(3, -1)[:, 5:24]  # of two tokens
    assert torch.equal((flat * 2).cpu(), x.view(3, -1)[:, 5:24] * 2)
    on_tpu[:, 3] = 7
    x[:, 3] = 7
    assert torch.equal(on_tpu.cpu(), x)
