# SPDX-License-Identifier: Apache-2.0
"""What the sweep over PyTorch's operator database must know about single entries.

Every exception to "the same values as on the CPU" is a row here, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def known_name(op: Any) -> str:
    """The name under which an entry stands in these tables; a reference has its operator's."""
    return str(op.name).removeprefix("_refs.").removeprefix("_conversions.")


#: Results are random or uninitialised memory: shape, dtype and gradients' shapes only.
VALUE_FREE = frozenset(
    """bernoulli empty empty_like empty_permuted empty_strided exponential geometric log_normal
    cauchy multinomial new_empty new_empty_strided normal rand_like randint randint_like randn
    randn_like uniform nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d
    nn.functional.alpha_dropout nn.functional.feature_alpha_dropout
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
    svd_lowrank pca_lowrank
    """.split()  # noqa: SIM905 - a word list reads better
)


def _drops(sample: Any) -> bool:
    """Whether a sample of attention draws a dropout mask."""
    return bool(sample.kwargs.get("dropout_p", 0.0))


def _trains(sample: Any) -> bool:
    return bool(sample.kwargs.get("training", False))


#: Results are random for some samples only.
SOMETIMES_VALUE_FREE: Mapping[str, Callable[[Any], bool]] = {
    "nn.functional.scaled_dot_product_attention": _drops,
    "nn.functional.multi_head_attention_forward": lambda _: True,  # positional dropout
    "nn.functional.rrelu": _trains,
}

#: Eigenvectors and singular vectors are unique up to a phase; the database says which
#: function of them is not, and that is compared.
UP_TO_PHASE = frozenset({"linalg.eig", "linalg.eigh", "linalg.svd", "svd"})

#: Which of equal elements is meant is not specified: position of ``dim`` among the
#: positional arguments after the input. The indices must point at the same values.
TIES: Mapping[str, int] = {
    "topk": 1,
    "msort": 0,
    "kthvalue": 1,
    "sort": 0,
    "argsort": 0,
    "mode": 0,
    "median": 0,
    "nanmedian": 0,
}


def _saved_statistics(sample: Any) -> frozenset[int]:
    """Unused in evaluation: CPU leaves them empty, PyTorch's meta kernel and CUDA do not."""
    training = sample.args[4]
    return frozenset() if training else frozenset({1, 2})


#: Positions of results that PyTorch leaves to the backend, by sample.
UNSPECIFIED: Mapping[str, Callable[[Any], frozenset[int]]] = {
    "native_batch_norm": _saved_statistics,
    "_native_batch_norm_legit": _saved_statistics,
}

#: CPU's kernel writes an ``out=`` as if it were contiguous; there is nothing to compare with.
CPU_IGNORES_OUT_STRIDES = frozenset({"nn.functional.avg_pool3d", "narrow_copy"})

#: For 16-bit input the mean and the reciprocal deviation are float32, as PyTorch's own
#: decompositions state for every device but the CPU, which rounds them to 16 bits.
WIDE_STATISTICS = frozenset(
    {
        "native_layer_norm",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
    }
)

#: Positional arguments that PyTorch wants on the CPU, whatever the device.
ON_CPU: Mapping[str, frozenset[int]] = {"tensor_split": frozenset({0})}

#: Entries that are not tried, with the reason.
NOT_TRIED: Mapping[str, str] = {
    "chalf": "complex32 does not exist on the device: XLA has no such type",
}

_ENDS = "an empty batch ends the process on the CPU"
#: Entries that are not tried with an empty batch, with the reason.
NOT_TRIED_EMPTY: Mapping[str, str] = {
    "_batch_norm_with_update": _ENDS,
    "_native_batch_norm_legit": _ENDS,
    "_segment_reduce": _ENDS,
    "_unsafe_masked_index": "indices are out of the range of an empty tensor, and not checked",
    "native_batch_norm": _ENDS,
    "nn.functional.batch_norm": _ENDS,
    "nn.functional.instance_norm": _ENDS,
    "nn.functional.pdist": _ENDS,
}

#: What is compared otherwise, of which entries, and why: printed in the docs.
EXCEPTIONS: tuple[tuple[str, frozenset[str], str], ...] = (
    (
        "values are not compared",
        VALUE_FREE,
        "random numbers are the device's own (their distributions are tested), and "
        "uninitialised memory has no value",
    ),
    (
        "values are not compared where the sample draws random numbers",
        frozenset(SOMETIMES_VALUE_FREE),
        "dropout masks and random slopes are the device's own",
    ),
    ("compared up to phase", UP_TO_PHASE, "eigenvectors and singular vectors are so defined"),
    (
        "any position of equal elements is right",
        frozenset(TIES),
        "PyTorch does not say which one is meant; what the position points at is compared",
    ),
    (
        "statistics of an evaluation are not compared",
        frozenset(UNSPECIFIED),
        "unused there: CPU leaves them empty, PyTorch's meta kernel does not",
    ),
    (
        "statistics of 16-bit input are rounded before they are compared",
        WIDE_STATISTICS,
        "they are float32, as PyTorch's decompositions state for every device but the CPU",
    ),
    (
        "strides of out= are not compared",
        CPU_IGNORES_OUT_STRIDES,
        "CPU's kernel writes an out= as if it were contiguous: there is nothing to compare with",
    ),
    *(("not tried", frozenset({name}), reason) for name, reason in NOT_TRIED.items()),
    *(
        ("not tried with an empty batch", frozenset({name}), reason)
        for name, reason in NOT_TRIED_EMPTY.items()
    ),
)
