# SPDX-License-Identifier: Apache-2.0
"""What memory the tensors that an overload writes may share with its operands.

The device computes a result before it writes it, so an overlap would do no harm here. But CPU
refuses it where its kernels read while they write, and a script that is to run on both should
hear of it on both. Where CPU's kernels do not look and return garbage, the device returns what
the mathematics says.
"""

from __future__ import annotations

import torch

#: Refused unless operand and written tensor are the same view: these, and what is pointwise.
_EXACT = (
    *("bernoulli", "cumprod", "cumsum", "floor_divide", "logcumsumexp", "normal", "renorm"),
    *("sort", "where"),
)
#: Refused for every operand but the written tensor itself: sources and indices.
_ITSELF = (
    *("_index_put_impl", "index_add", "index_copy", "index_put", "index_reduce", "put"),
    *("scatter", "scatter_add", "scatter_reduce"),
)
#: Refused for every operand, as an ``out=``.
_NOTHING = ("cat", "gather", "index_select", "kthvalue", "linalg_cross", "take")
#: Of these, what refuses an expanded ``out=`` even if it is to be resized.
APART = ("aten::index_select", "aten::take")
#: Every element gets the same value, so elements may share memory too.
_REPEATS = ("fill", "zero")
#: Pointwise by their tag, and not looked at by CPU: the value to fill with is read first.
_UNCHECKED = ("masked_fill",)


def sharing_of(overload: str) -> str | None:
    """The name of the rule for an overload that writes; None where anything is accepted.

    >>> sharing_of("aten::add_.Tensor"), sharing_of("aten::gather.out")
    ('exact', 'nothing')
    >>> sharing_of("aten::mm.out") is None
    True
    """
    base, _, variant = overload.partition(".")
    namespace, _, name = base.partition("::")
    if namespace != "aten":
        return None
    name = name if name.startswith("__") else name.rstrip("_")
    for rule, names in (("itself", _ITSELF), ("nothing", _NOTHING), ("repeats", _REPEATS)):
        if name in names:
            return rule
    exact = name in _EXACT or (name not in _UNCHECKED and is_pointwise(base, variant))
    return "exact" if exact else None


def is_pointwise(base: str, variant: str) -> bool:
    """Whether an overload, or the functional one it belongs to, has PyTorch's tag.

    Args:
        base: namespace and name, such as ``aten::add_``.
        variant: the overload's name, empty for the default one.
    """
    for spelled in (base, base.removesuffix("_")):
        found = torch._C._get_operation_overload(spelled, variant)  # no packet is made
        if found is not None and torch.Tag.pointwise in found[2]:
            return True
    return False
