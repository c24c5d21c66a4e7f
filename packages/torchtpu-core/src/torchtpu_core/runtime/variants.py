# SPDX-License-Identifier: Apache-2.0
"""Which overloads a row serves: its own, and the in-place and out= forms of it.

A row is written once for the functional overload. The dispatcher knows each form as
an overload of its own, so the recorder is registered for every one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchtpu_core.errors import LoweringTableError


def schemas_of(overload: str) -> Iterator[tuple[str, Any]]:
    """Full name and schema of the row's overload and of the forms derived from it.

    Raises:
        LoweringTableError: torch has no such overload.
    """
    name, _, variant = overload.partition(".")
    own = next((s for s in _named(name) if s.overload_name == variant), None)
    if own is None:
        raise LoweringTableError(
            f"{overload} is not an overload of torch {torch.__version__}. Check the name with "
            "torch._C._jit_get_schemas_for_operator."
        )
    yield overload, own
    if _writes(own) or _is_view(own):
        return
    for schema in _named(name + "_"):
        if inputs_of(schema) == inputs_of(own) and schema.arguments[0].alias_info is not None:
            yield _full_name(schema), schema
    for schema in _named(name):
        if schema is not own and _has_out(schema) and inputs_of(schema) == inputs_of(own):
            yield _full_name(schema), schema


def is_only_out(schema: Any) -> bool:
    """Whether the schema is an out= overload."""
    return _has_out(schema)


#: Views without saying so: PyTorch's own kernels write through them (``kron`` with ``out=``).
_UNSAID_VIEWS = frozenset(
    {"aten::_unsafe_view", "aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes"}
)

#: Forms that PyTorch makes of one with a row: that one fills an ``out=`` in its own shape.
_COMPOSED_OUTS = frozenset({"aten::arange.out", "aten::range.out_"})


def is_left_to_torch(overload: str, schema: Any) -> bool:
    """Whether eager calls use PyTorch's own kernel although a row exists for graphs.

    That holds for views (metadata over the same storage), for factories that PyTorch
    composes (they honour a ``device`` argument other than ours), and for what C++ does.
    """
    if overload in _UNSAID_VIEWS or overload in _COMPOSED_OUTS:
        return True
    if overload in ("aten::copy", "aten::copy_"):  # also between devices: csrc/copies.cpp
        return True
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if _is_view(schema):
        return True
    factory = any(a.name == "device" for a in schema.arguments)
    composed = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    if factory and any(has_kernel(overload, key) for key in composed):
        return True
    return has_kernel(overload, "CompositeImplicitAutograd") or has_kernel(overload, "PrivateUse1")


def _named(name: str) -> list[Any]:
    return list(torch._C._jit_get_schemas_for_operator(name))


def _full_name(schema: Any) -> str:
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


def _has_out(schema: Any) -> bool:
    return any(a.is_out for a in schema.arguments)


def _is_view(schema: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _writes(schema: Any) -> bool:
    return any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)


def inputs_of(schema: Any) -> list[tuple[str, str]]:
    """Names and types of what goes in, without what only decides the output's layout."""
    layout_only = {"memory_format", "dtype", "device", "layout", "pin_memory"}
    return [
        (a.name, str(a.type).replace("(a!)", ""))
        for a in schema.arguments
        if not a.is_out and a.name not in layout_only
    ]
