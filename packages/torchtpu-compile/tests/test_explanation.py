# SPDX-License-Identifier: Apache-2.0
"""`explain` and the callback for new programs."""

from __future__ import annotations

import re
from collections import Counter

import torch
from torch import Tensor
from torchtpu_compile.explanation import explain


def broken(x: Tensor) -> Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def test_explanation_names_the_line_of_a_graph_break_and_the_programs() -> None:
    found = explain(broken)(torch.ones(2, device="tpu"))
    assert found.graph_count == 2
    assert len(found.breaks) == 1
    assert "test_explanation.py" in found.breaks[0]
    assert len(found.programs) >= 1
    assert found.programs[0][2] == "first call"
    assert "graph breaks" in str(found)


def test_debug_callback_gets_the_stablehlo_of_each_new_program() -> None:
    seen: list[tuple[str, str]] = []
    options = {"name": "watched", "debug_callback": lambda name, text: seen.append((name, text))}
    function = torch.compile(lambda x: x.cos() * 2, backend="tpu", options=options)
    for _ in range(2):
        function(torch.ones(7, device="tpu")).cpu()
    assert len(seen) == 1
    assert seen[0][0].startswith("watched.")
    assert "stablehlo.cosine" in seen[0][1]


def test_compiled_layer_computes_no_operation_that_nobody_reads() -> None:
    """Products contract the weight as it lies, so that its transposition is dead."""
    seen: list[str] = []
    options = {"name": "layer", "debug_callback": lambda name, text: seen.append(text)}
    layer = torch.nn.Linear(5, 3).to("tpu")
    compiled = torch.compile(layer, backend="tpu", options=options)
    compiled(torch.ones(2, 5, device="tpu")).sum().backward()
    layer.weight.grad.cpu()  # type: ignore[union-attr]
    assert any("stablehlo.dot_general" in text for text in seen)
    for text in seen:
        made = re.findall(r"^ +(%\w+) = ", text, re.MULTILINE)
        read = Counter(re.findall(r"%\w+", text))
        assert [name for name in made if read[name] == 1] == []
