# SPDX-License-Identifier: Apache-2.0
"""Sums with a scaled term, ``x + alpha * y``, kept from patterns of Inductor that drop the scale.

Inductor fuses a matrix product and a sum to `addmm`, and two products and a sum to one kernel;
its matcher ignores keyword arguments that a pattern does not name (torch 2.13, on every device).
On tensors of this device such a sum becomes ``x - (-alpha) * y`` before any pattern looks: the same
number, rounded once as before. Graphs of other devices stay as they are.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Node

_ADD = torch.ops.aten.add.Tensor
_SUB = torch.ops.aten.sub.Tensor


def register(joint_graph: Any) -> None:
    """Add the rewriting to the patterns that Inductor's module of joint graphs applies first."""
    from torch._inductor.pattern_matcher import CallFunctionVarArgs, register_graph_pattern

    rewrite = register_graph_pattern(
        CallFunctionVarArgs(_ADD),
        extra_check=lambda match: is_scaled(match.output_node()),
        pass_dict=joint_graph.early_patterns,
    )
    rewrite(lambda match, *args, **kwargs: subtract(match.output_node()))


def is_scaled(node: Node) -> bool:
    """Whether a sum on the device scales its second term, by a number that can be negated."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
        return False
    can_negate = value.dtype is not torch.bool and (value.is_complex() or value.dtype.is_signed)
    return can_negate and node.kwargs.get("alpha", 1) != 1


def subtract(node: Node) -> None:
    """Put the difference in the place of a sum."""
    alpha: Any = node.kwargs["alpha"]
    with node.graph.inserting_before(node):
        if isinstance(alpha, Node):
            negated = node.graph.call_function(operator.neg, (alpha,))
            negated.meta["val"] = -alpha.meta["val"]
        else:
            negated = -alpha
        difference = node.graph.call_function(_SUB, node.args, {"alpha": negated})
    difference.meta.update(node.meta)
    node.replace_all_uses_with(difference)
    node.graph.erase_node(node)
