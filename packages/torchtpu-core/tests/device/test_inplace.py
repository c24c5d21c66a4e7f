# SPDX-License-Identifier: Apache-2.0
"""In-place and out= operations write where CPU writes and refuse what CPU refuses."""

from __future__ import annotations

import pytest
import torch


def _pair(*shape):
    x = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape)
    return x, x.to("tpu")


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: x.mul_(x),
        lambda x: x.zero_(),
        lambda x: x.clamp_(2, 4),
        lambda x: x.t_(),
        lambda x: x.masked_fill_(x > 3, 0),
        lambda x: x.index_fill_(0, torch.tensor([1], device=x.device), 7),
        lambda x: x.__setitem__((0, slice(1, None)), 9),
        lambda x: x.__setitem__(x > 4, 0),
        lambda x: x[:, 0].add_(10),
        lambda x: x.t()[1].mul_(2),
        lambda x: x.copy_(x.flip(0)),
        lambda x: x.__iadd__(x.sum()),
        lambda x: x.squeeze_(),
        lambda x: x.unsqueeze_(0),
    ],
)
def test_inplace_op_matches_cpu(write):
    expected, actual = _pair(2, 3)
    write(expected)
    write(actual)
    assert actual.shape == expected.shape
    torch.testing.assert_close(actual.cpu(), expected)


def test_inplace_op_bumps_the_version():
    x = torch.zeros(3, device="tpu")
    before = x._version
    x.add_(1)
    assert x._version == before + 1


def test_inplace_op_returns_its_operand():
    x = torch.zeros(3, device="tpu")
    assert x.add_(1) is x


def test_inplace_keeps_the_dtype():
    x = torch.zeros(3, dtype=torch.int32, device="tpu")
    x.add_(True)
    assert x.dtype == torch.int32
    with pytest.raises(RuntimeError, match=r"can't be cast|not possible"):
        x.add_(1.5)


def test_inplace_refuses_to_broadcast_its_operand():
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        torch.zeros(1, 3, device="tpu").add_(torch.zeros(2, 3, device="tpu"))


def test_out_is_written_in_place():
    x = torch.ones(3, device="tpu")
    out = torch.empty(3, device="tpu")
    assert torch.add(x, 1, out=out) is out
    assert out.tolist() == [2.0, 2.0, 2.0]


def test_out_that_is_a_view_writes_the_base():
    base = torch.zeros(2, 3, device="tpu")
    torch.mul(torch.ones(3, device="tpu"), 2, out=base[1])
    assert base.tolist() == [[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]]


def test_out_of_another_size_is_resized_with_a_warning():
    out = torch.ones(3, device="tpu")[:2]
    with pytest.warns(UserWarning, match="resized"):
        torch.add(torch.ones(3, device="tpu"), 1, out=out)
    assert out.shape == (3,)


def test_out_of_the_wrong_dtype_is_refused():
    out = torch.empty(3, dtype=torch.int64, device="tpu")
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(torch.ones(3, device="tpu"), 1.5, out=out)


def test_out_that_is_an_operand_is_read_before_it_is_written():
    x = torch.tensor([1.0, 2.0, 3.0], device="tpu")
    torch.cumsum(x, 0, out=x)
    assert x.tolist() == [1.0, 3.0, 6.0]


def test_write_does_not_change_values_read_before():
    x = torch.zeros(3, device="tpu")
    y = x + 1
    kept = x.clone()
    x.fill_(5)
    assert y.tolist() == [1.0, 1.0, 1.0]
    assert kept.tolist() == [0.0, 0.0, 0.0]


def test_write_to_conjugate_view_matches_cpu():
    for write in (
        lambda c: c.fill_(5 + 5j),
        lambda c: c.mul_(2j),
        lambda c: c.copy_(torch.tensor([1j, 2 + 1j])),
        lambda c: c.copy_(torch.tensor([1j, 2 + 1j]).conj()),
        lambda c: c.copy_(torch.tensor([1j, 2 + 1j], device=c.device)),
        lambda c: c.copy_(torch.tensor([1j, 2 + 1j], device=c.device).conj()),
        lambda c: c.imag.copy_(torch.tensor([1.0, 2.0], device=c.device)),
        lambda c: c.imag.add_(1),
    ):
        results = []
        for device in ("cpu", "tpu"):
            x = torch.tensor([1 + 2j, 3 - 1j], device=device)
            write(x.conj())
            results.append(x.tolist())
        assert results[0] == results[1]


def test_out_of_a_kernel_that_writes_through_an_unsafe_view_is_written():
    a, b = torch.arange(1.0, 5.0).reshape(2, 2), torch.arange(6.0).reshape(3, 2)
    out = torch.zeros(6, 4, device="tpu")
    torch.kron(a.to("tpu"), b.to("tpu"), out=out)
    torch.testing.assert_close(out.cpu(), torch.kron(a, b))


def test_unsafe_view_and_split_share_the_storage_as_on_cpu():
    x = torch.zeros(2, 4, device="tpu")
    flat = torch.ops.aten._unsafe_view(x, [8])
    first, _ = torch.unsafe_split(x, 2, dim=1)
    flat[1] = 5.0
    assert x[0, 1].item() == 5.0
    assert first[0, 1].item() == 5.0
    assert first.stride() == (4, 1)


def test_histogram_into_out_of_another_size_resizes_both():
    x = torch.tensor([0.0, 1.0, 1.0, 4.0])
    hist, edges = torch.zeros(0, device="tpu"), torch.zeros(2, 3, device="tpu")
    with pytest.warns(UserWarning, match="resized"):
        torch.histogram(x.to("tpu"), 4, out=(hist, edges))
    torch.testing.assert_close((hist.cpu(), edges.cpu()), tuple(torch.histogram(x, 4)))


@pytest.mark.parametrize(
    "fill",
    [
        lambda x, value: x.masked_fill(x > 3, value),
        lambda x, value: x.masked_fill_(x > 3, value),
        lambda x, value: x.index_fill(0, torch.tensor([1], device=x.device), value),
        lambda x, value: x.__setitem__(x > 3, value),
        lambda x, value: x.__setitem__(torch.tensor([True, False]), value),
        lambda x, value: x.index_put_((torch.tensor([0, 0], device=x.device),), value, True),
    ],
)
def test_number_in_a_cpu_tensor_fills_a_tensor_of_the_device(fill):
    expected, actual = _pair(2, 3)
    value = torch.tensor(7.0)
    results = fill(expected, value), fill(actual, value)
    torch.testing.assert_close(actual.cpu(), expected)
    if results[0] is not None:
        torch.testing.assert_close(results[1].cpu(), results[0])


@pytest.mark.parametrize("shape", [(0,), (2, 7)])
@pytest.mark.parametrize(
    "call",
    [
        lambda x, out: torch.nonzero(x.real > 0, out=out.long()),
        lambda x, out: torch.masked_select(x, x.real > 0, out=out.to(x.dtype)),
        lambda x, out: torch.conj_physical(x, out=out.to(x.dtype)),
    ],
    ids=["nonzero", "masked_select", "conj_physical"],
)
@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_out_of_an_op_without_stated_shape_is_resized_and_written(call, shape):
    x = torch.tensor([[1 + 2j, -1 + 0j, 3 - 1j], [0j, 2 + 2j, -1j]])
    actual = call(x.to("tpu"), torch.zeros(shape, device="tpu"))
    torch.testing.assert_close(actual.cpu(), call(x, torch.zeros(shape)))


def test_out_of_another_dtype_than_positions_is_refused():
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="Expected out tensor to have scalar type Long"):
            torch.nonzero(torch.ones(2, device=device), out=torch.zeros(2, 1, device=device))


@pytest.mark.parametrize("name", ["eq_", "pow_", "atan2_", "fmod_", "lt_", "add_", "clamp_min_"])
@pytest.mark.parametrize("sizes", [((3, 4), (5, 3, 4)), ((3, 1), (3, 4)), ((), (3,))])
def test_result_larger_than_self_is_refused(name, sizes):
    x = torch.ones(sizes[0], device="tpu")
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        getattr(x, name)(torch.full(sizes[1], 2.0, device="tpu"))
    assert x.shape == sizes[0]
    assert x.eq(1).all()


def test_conj_physical_in_place_equals_cpu():
    numbers = torch.tensor([1 + 2j, 3 - 1j])
    for start in (numbers, torch.tensor([1.0, 2.0])):
        x = start.to("tpu")
        assert x.conj_physical_() is x
        assert torch.equal(x.cpu(), start.clone().conj_physical_())
    lazily = numbers.to("tpu").conj()
    assert torch.equal(lazily.conj_physical_().cpu(), numbers)
