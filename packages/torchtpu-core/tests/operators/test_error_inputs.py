# SPDX-License-Identifier: Apache-2.0
"""The mistakes that PyTorch's operator database lists are refused as on CPU."""

from __future__ import annotations

import warnings

import pytest
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
