# SPDX-License-Identifier: Apache-2.0
"""The mistakes that PyTorch's operator database lists are refused as on CPU."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import op_db
from torchtpu_core.testing.op_errors import names_the_problem, sweep_errors

_ENTRIES = [op for op in op_db if op.error_inputs_func is not None]


@pytest.mark.parametrize(
    "op", _ENTRIES, ids=[f"{op.name}.{op.variant_test_name}".rstrip(".") for op in _ENTRIES]
)
def test_mistakes_of_the_database_raise_cpus_class_and_name_the_problem(op):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcome = sweep_errors(op)
    assert outcome.status == "pass", outcome.detail


def test_message_with_other_words_does_not_name_the_problem():
    assert not names_the_problem("it failed", "expected dim to be in range of self")
    assert names_the_problem("dim 3 is not in the range of self", "expected dim in range of self")


def _ints(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64)


def _complex(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.complex64)


def _half(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.bfloat16)


#: Calls that PyTorch's meta kernels accept and lowerings fail on.
_MISTAKES = {
    "bits of floats and a number": (lambda x: x & 1, torch.ones(3)),
    "bits of floats, in place": (lambda x: x.clone().__ior__(1), torch.ones(3)),
    "bits of complex numbers": (lambda x: x ^ x, _complex(3)),
    "common divisors of floats": (lambda x: torch.gcd(x, x), torch.ones(3)),
    "softmax over no dim": (lambda x: x.softmax(3), torch.ones(3, 2)),
    "softmax of integers": (lambda x: x.softmax(0), _ints(3, 2)),
    "median of complex numbers": (lambda x: x.median(), _complex(3)),
    "order of complex numbers": (lambda x: x < x, _complex(3)),
    "remainders of complex numbers": (lambda x: x % x, _complex(3)),
    "convolution of two dtypes": (
        lambda x: F.conv1d(x, _half(1, 1, 1).to(x.device)),
        torch.ones(1, 1, 2),
    ),
    "attention of two widths": (
        lambda x: F.scaled_dot_product_attention(x, x[..., 1:], x[..., 1:]),
        torch.ones(1, 2, 3, 4),
    ),
    "values of half precision": (torch.linalg.svdvals, _half(3, 3)),
    "factors of half precision": (torch.linalg.cholesky, _half(3, 3)),
    "more positions than a dtype has": (
        lambda x: torch.randperm(257, dtype=torch.uint8, device=x.device),
        torch.ones(3),
    ),
}


@pytest.mark.parametrize("name", _MISTAKES)
def test_mistake_that_a_lowering_finds_is_refused_in_cpus_words(name: str) -> None:
    function, operand = _MISTAKES[name]
    with pytest.raises(Exception) as expected:
        function(operand)
    with pytest.raises(type(expected.value)) as found:
        function(operand.to("tpu")).cpu()
    assert str(found.value).startswith(str(expected.value))
