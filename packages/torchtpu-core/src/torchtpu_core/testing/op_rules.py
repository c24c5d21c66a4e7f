# SPDX-License-Identifier: Apache-2.0
"""What the sweep over PyTorch's operator database must know about single entries.

Every exception to "the same values as on the CPU" is a row here, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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

#: Positional arguments that PyTorch wants on the CPU, whatever the device.
ON_CPU: Mapping[str, frozenset[int]] = {"tensor_split": frozenset({0})}

#: Entries that are not tried, with the reason.
NOT_TRIED: Mapping[str, str] = {
    "chalf": "complex32 does not exist on the device: XLA has no such type",
}
