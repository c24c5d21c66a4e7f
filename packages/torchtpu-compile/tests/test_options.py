# SPDX-License-Identifier: Apache-2.0
"""Options, and the errors of what is not supported."""

from __future__ import annotations

import pytest
import torch
import torch._inductor
from torchtpu_compile.errors import CompileOptionError
from torchtpu_compile.options import NOT_SUPPORTED, CompileOptions


def test_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(CompileOptionError, match=r"Did you mean 'name'\?.*debug_callback"):
        CompileOptions.parse(None, {"nmae": "decoder"})


@pytest.mark.parametrize("name", sorted(NOT_SUPPORTED))
def test_reserved_option_says_it_is_not_supported(name: str) -> None:
    with pytest.raises(CompileOptionError, match=f"{name}.*not supported yet"):
        CompileOptions.parse(None, {name: 1})


@pytest.mark.parametrize("mode", [None, *torch._inductor.list_mode_options()])
def test_mode_of_torch_compile_is_accepted(mode: str | None) -> None:
    assert CompileOptions.parse(mode, None) == CompileOptions()


def test_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(CompileOptionError, match=r"max-autotune.*reduce-overhead"):
        CompileOptions.parse("max-autotun", None)


def test_empty_name_is_refused() -> None:
    with pytest.raises(CompileOptionError, match="non-empty"):
        CompileOptions.parse(None, {"name": ""})


def test_truth_value_is_no_number_of_buckets() -> None:
    with pytest.raises(CompileOptionError, match="whole number"):
        CompileOptions.parse(None, {"bucket_size": True})


def test_error_of_an_option_reaches_the_caller_of_the_model() -> None:
    function = torch.compile(lambda x: x + 1, backend="tpu", options={"bucket_size": 0})
    with pytest.raises(Exception, match="bucket_size"):
        function(torch.ones(2, device="tpu"))


def test_name_is_the_programs_name() -> None:
    from torchtpu_compile.export import export_stablehlo

    text = export_stablehlo(torch.nn.ReLU(), (torch.ones(2),), name="rectifier")
    assert "module @jit_rectifier" in text


def test_default_backend_can_be_set_to_tpu() -> None:
    torch.compiler.set_default_backend("tpu")
    try:
        result = torch.compile(lambda x: x + 1)(torch.ones(2, device="tpu"))
    finally:
        torch.compiler.set_default_backend(None)
    assert torch.equal(result.cpu(), torch.full((2,), 2.0))
