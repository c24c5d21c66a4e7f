# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors of the device: made, taken apart, added and multiplied as on the CPU."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.runtime import fallbacks

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")

_DENSE = torch.tensor([[0.0, 2, 0, -1], [0, 0, 0, 0], [3, 0, 0.5, 0], [0, 0, 0, 4], [1, 0, 0, 0]])
_RIGHT = torch.linspace(-1, 1, 12).reshape(4, 3)
_ADDED = torch.linspace(2, 3, 15).reshape(5, 3)


def _coo(device):
    return _DENSE.to(device).to_sparse()


def _repeating(device):
    places = torch.tensor([[0, 4, 0, 2], [1, 3, 1, 0]], device=device)
    return torch.sparse_coo_tensor(places, torch.arange(1.0, 5, device=device), (5, 4))


def _csr(device):
    return _DENSE.to(device).to_sparse_csr()


def _csc(device):
    return _DENSE.to(device).to_sparse_csc()


def _bsr(device):
    return _DENSE.to(device).to_sparse_bsr((5, 2))


_MAKERS = {"coo": _coo, "repeating": _repeating, "csr": _csr, "csc": _csc, "bsr": _bsr}
_ALL, _BY_ELEMENT = tuple(_MAKERS), ("coo", "repeating", "csr", "csc")
_COO = ("coo", "repeating")

_CALLS = {
    "to_dense": (lambda s: s.to_dense(), _ALL),
    "to_dense_dtype": (lambda s: s.double().to_dense(), _ALL),
    "to_cpu": (lambda s: s.cpu(), _ALL),
    "clone": (lambda s: s.clone(), _ALL),
    "sum": (lambda s: s.sum(), _ALL),
    "sine": (lambda s: s.sin(), _ALL),
    "scaled": (lambda s: s * 2, _ALL),
    "scaled_in_place": (lambda s: s.clone().mul_(3), _BY_ELEMENT),
    "masked": (lambda s: _DENSE.to(s.device).sparse_mask(s), ("coo", "csr", "csc", "bsr")),
    "transposed": (lambda s: s.t(), ("coo", "repeating", "csr", "csc")),
    "to_csr": (lambda s: s.to_sparse_csr(), _BY_ELEMENT),
    "to_csc": (lambda s: s.to_sparse_csc(), _BY_ELEMENT),
    "to_coo": (lambda s: s.to_sparse(), _ALL),
    "doubled": (lambda s: s + s, _BY_ELEMENT),
    "squared": (lambda s: s * s, ("coo", "csr")),
    "times_dense": (lambda s: s * _DENSE.to(s.device), ("coo", "csr")),
    "plus_dense": (lambda s: _DENSE.to(s.device) + s, _BY_ELEMENT),
    "times_matrix": (lambda s: s @ _RIGHT.to(s.device), _BY_ELEMENT),
    "of_matrix": (lambda s: _DENSE.t().to(s.device) @ s, _BY_ELEMENT),
    "times_vector": (lambda s: s @ _RIGHT[:, 0].to(s.device), _BY_ELEMENT),
    "addmm": (
        lambda s: torch.addmm(_ADDED.to(s.device), s, _RIGHT.to(s.device), beta=0.5, alpha=2),
        _BY_ELEMENT,
    ),
    "coalesced": (lambda s: s.coalesce().indices(), _COO),
    "norm": (lambda s: torch.norm(s), _COO),
    "sum of magnitudes": (lambda s: torch.norm(s, 1), _COO),
    "scaled_each": (lambda s: torch._foreach_mul([s], 2.0)[0], ("coo", "repeating", "csr")),
    "joined": (lambda s: torch.cat([s, s]), _COO),
}


@pytest.mark.parametrize(
    ("call", "maker"), [(call, maker) for call, (_, makers) in _CALLS.items() for maker in makers]
)
def test_sparse_tensor_gives_what_cpu_gives_without_the_host(call, maker):
    fallbacks_before = sum(fallbacks.counts.values())
    function, make = _CALLS[call][0], _MAKERS[maker]
    actual, expected = function(make("tpu")), function(make("cpu"))
    if call != "to_cpu":
        assert actual.device.type == "tpu"
    assert actual.layout == expected.layout
    on_host = actual.cpu()
    if expected.layout != torch.strided:
        on_host, expected = on_host.to_dense(), expected.to_dense()
    torch.testing.assert_close(on_host, expected)
    assert sum(fallbacks.counts.values()) == fallbacks_before


@pytest.mark.parametrize("maker", ["coo", "csr"])
def test_gradients_of_a_sparse_product_match_cpu(maker):
    results = []
    for device in ("cpu", "tpu"):
        matrix = _MAKERS[maker](device).detach().requires_grad_()
        right = _RIGHT.clone().to(device).requires_grad_()
        (torch.sparse.mm(matrix, right).square()).sum().backward()
        results.append((matrix.grad.cpu().to_dense(), right.grad.cpu()))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64, torch.bool])
def test_coalesced_values_are_those_of_cpu_in_each_dtype(dtype):
    made = [_repeating(device).to(dtype).coalesce() for device in ("tpu", "cpu")]
    torch.testing.assert_close(made[0].cpu().values(), made[1].values())
    assert torch.equal(made[0].to_dense().cpu(), made[1].to_dense())


def test_csr_constructor_with_a_column_out_of_range_raises_as_cpu():
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match="col_indices"):
            torch.sparse_csr_tensor(
                [0, 1, 2], [0, 7], [1.0, 2.0], (2, 3), device=device, check_invariants=True
            )


@pytest.mark.filterwarnings("ignore::torchtpu_core.runtime.fallbacks.FallbackWarning")
def test_function_without_a_kernel_for_sparse_tensors_runs_on_the_host_and_is_counted():
    before = fallbacks.counts["aten::_sparse_softmax"]
    made = torch.sparse.softmax(_coo("tpu"), 1)
    torch.testing.assert_close(made.cpu(), torch.sparse.softmax(_coo("cpu"), 1))
    assert fallbacks.counts["aten::_sparse_softmax"] == before + 1


@pytest.mark.parametrize("maker", _MAKERS.values(), ids=_MAKERS)
def test_sparse_tensor_lives_and_is_computed_on_a_device_that_is_not_the_current_one(maker):
    x = maker("tpu:1")
    assert {x.device, (x * 2).device, x.cpu().to("tpu:1").device} == {torch.device("tpu:1")}
    assert torch.equal((x * 2).cpu().to_dense(), (maker("cpu") * 2).to_dense())
    torch.testing.assert_close((x @ _RIGHT.to("tpu:1")).cpu(), maker("cpu").to_dense() @ _RIGHT)


def test_sparse_gradient_of_an_embedding_lives_on_its_device():
    weight = torch.ones(4, 2, device="tpu:1", requires_grad=True)
    rows = torch.tensor([2, 0, 2], device="tpu:1")
    torch.nn.functional.embedding(rows, weight, sparse=True).sum().backward()
    assert weight.grad.device == torch.device("tpu:1")
    assert weight.grad.cpu().to_dense().tolist() == [[1.0, 1.0], [0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]


@pytest.mark.parametrize("places", [[0, 1], [1, 0], [1, 1]])
def test_claim_to_be_coalesced_is_checked_as_on_the_cpu(places: list[int]) -> None:
    def make(device: str) -> bool:
        index = torch.tensor([places, [0, 0]], device=device)
        values = torch.ones(2, device=device)
        options = {"check_invariants": True, "is_coalesced": True}
        return torch.sparse_coo_tensor(index, values, (2, 2), **options).is_coalesced()

    try:
        expected = make("cpu")
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error)):
            make("tpu")
    else:
        assert make("tpu") is expected


_FRACTIONS = {
    "add_": lambda x, y: x.add_(y.to_sparse()),
    "sub_": lambda x, y: x.to_sparse().sub_(y.to_sparse()),
    "mul_": lambda x, y: x.to_sparse().mul_(y.to_sparse()),
    "mul_ by a number": lambda x, _: x.to_sparse().mul_(2.5),
    "add, out": lambda x, y: torch.add(y, y.to_sparse(), out=x),
}


@pytest.mark.parametrize("write", _FRACTIONS.values(), ids=_FRACTIONS)
def test_fractions_written_to_whole_numbers_are_refused_as_on_the_cpu(write) -> None:
    for device in ("cpu", "tpu"):
        whole = torch.eye(3, dtype=torch.int64, device=device)
        with pytest.raises(RuntimeError, match=r"Float.*Long"):
            write(whole, 1.5 * torch.eye(3, device=device))
        assert whole.cpu().equal(torch.eye(3, dtype=torch.int64))
