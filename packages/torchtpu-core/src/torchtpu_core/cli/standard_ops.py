# SPDX-License-Identifier: Apache-2.0
# data table
"""The standard operators at common shapes, as calls that `torchtpu cache build` compiles."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

#: Shapes of elementwise operators and reductions.
SHAPES = ((), (16,), (1024,), (32, 64), (128, 128), (512, 512), (8, 128, 256))
DTYPES = (torch.float32, torch.bfloat16)
#: (rows, inner, columns) of products.
PRODUCTS = ((32, 64, 64), (128, 128, 128), (256, 512, 512), (512, 512, 512))

Unary = Callable[[torch.Tensor], object]
Binary = Callable[[torch.Tensor, torch.Tensor], object]

#: Of one tensor, every shape and dtype.
UNARY: dict[str, Unary] = {
    "neg": torch.neg,
    "abs": torch.abs,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "add scalar": lambda x: x + 1.5,
    "mul scalar": lambda x: x * 1.5,
    "div scalar": lambda x: x / 1.5,
    "pow": lambda x: x**2,
    "sum": torch.sum,
    "mean": torch.mean,
    "clone": torch.clone,
    "zero_": lambda x: x.zero_(),
    "to float32": lambda x: x.float(),
    "to bfloat16": lambda x: x.bfloat16(),
}
#: Of two tensors of one shape, every shape and dtype.
BINARY: dict[str, Binary] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "eq": torch.eq,
    "lt": torch.lt,
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, y: x.mul_(y),
    "where": lambda x, y: torch.where(x > y, x, y),
}
#: Along the last dimension, every shape that has one.
ROWWISE: dict[str, Unary] = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sum last": lambda x: x.sum(-1),
    "amax last": lambda x: x.amax(-1),
    "argmax last": lambda x: x.argmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "cat": lambda x: torch.cat([x, x], -1),
}
#: Of two matrices, every product and dtype.
MATRICES: dict[str, Binary] = {
    "mm": torch.mm,
    "mm transposed": lambda x, y: torch.mm(y.t(), x.t()),
    "bmm": lambda x, y: torch.bmm(x.expand(8, *x.shape), y.expand(8, *y.shape)),
}
