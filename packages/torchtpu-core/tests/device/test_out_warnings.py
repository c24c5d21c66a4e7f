# SPDX-License-Identifier: Apache-2.0
"""An ``out=`` that does not fit is told: by the warnings of the CPU, no more, or as an error."""

from __future__ import annotations

import warnings

import pytest
import torch

_CALLS = {
    "add": lambda x, out: torch.add(x, 1, out=out),
    "mm": lambda x, out: torch.mm(x, x, out=out),
    "cat": lambda x, out: torch.cat([x, x], out=out),
    "cumsum": lambda x, out: torch.cumsum(x, 0, out=out),
}


@pytest.mark.parametrize("call", _CALLS.values(), ids=_CALLS)
def test_out_that_is_resized_warns_once_in_cpus_words(call):
    said = {}
    for device in ("cpu", "tpu"):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            call(torch.ones(2, 2, device=device), torch.empty(3, device=device))
        said[device] = [str(warning.message) for warning in found]
    assert len(said["cpu"]) == 1
    assert said["tpu"] == said["cpu"]


_FACTORIES = {
    "arange": lambda out: torch.arange(2, 10, 2, out=out),
    "fftfreq": lambda out: torch.fft.fftfreq(10, out=out),
    "linspace": lambda out: torch.linspace(0, 1, 10, out=out),
    "eye": lambda out: torch.eye(3, out=out),
    "full": lambda out: torch.full((4,), 1.0, out=out),
    "zeros": lambda out: torch.zeros(4, out=out),
    "rand": lambda out: torch.rand(4, out=out),
    "randperm": lambda out: torch.randperm(4, out=out),
}


@pytest.mark.parametrize("factory", _FACTORIES.values(), ids=_FACTORIES)
def test_out_that_a_factory_resizes_warns_as_on_the_cpu(factory):
    said = {}
    for device in ("cpu", "tpu"):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            shape = factory(torch.empty(3, 2, device=device)).shape
        texts = [str(warning.message).partition(" (Triggered")[0] for warning in found]
        said[device] = (shape, texts)
    assert said["tpu"] == said["cpu"]


_OF_UNKNOWN_SIZE = {
    "nonzero": lambda x, out: torch.nonzero(x, out=out.long()),
    "masked_select": lambda x, out: torch.masked_select(x, x > 0, out=out),
}


@pytest.mark.parametrize("call", _OF_UNKNOWN_SIZE.values(), ids=_OF_UNKNOWN_SIZE)
def test_out_on_the_host_is_refused_where_data_decide_its_size(call):
    with pytest.raises(RuntimeError, match=r"to be on the same device.*tpu:0.*cpu"):
        call(torch.ones(2, 2, device="tpu"), torch.empty(0))
