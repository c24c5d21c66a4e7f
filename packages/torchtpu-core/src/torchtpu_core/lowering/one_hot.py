# SPDX-License-Identifier: Apache-2.0
"""One-hot rows, whose classes are checked on the device.

PyTorch's own kernel checks the classes on the CPU alone, because elsewhere it would wait
for the device. Here a check is one more small result of the program that makes the rows.
"""

from __future__ import annotations

import torch

from torchtpu_core.lowering.table import Lowering, composite


def _one_hot(self: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`(...)` classes -> `(..., num_classes)`; their number is read from the device if not given.

    Raises:
        RuntimeError: of another dtype than int64, or a class is negative or too large.
    """
    if self.dtype != torch.int64:
        raise RuntimeError("one_hot is only applicable to index tensor of type LongTensor.")
    if self.numel() == 0:
        if num_classes <= 0:
            raise RuntimeError("Can not infer total number of classes from empty tensor.")
        return self.new_zeros((*self.shape, num_classes))
    negative = "Class values must be non-negative."
    if num_classes == -1:
        low, high = torch.stack([self.min(), self.max()]).tolist()
        if low < 0:
            raise RuntimeError(negative)
        num_classes = high + 1
    if num_classes <= 0:
        raise RuntimeError("num_classes should be positive")
    classes = torch.arange(num_classes, device=self.device)
    rows = (self.contiguous().unsqueeze(-1) == classes).to(torch.int64)
    require = torch.ops.aten._functional_assert_async.msg
    rows = require((self >= 0).all(), negative, rows)
    fits = (self < num_classes).all()
    return require(fits, "Class values must be smaller than num_classes.", rows)


TABLE: tuple[Lowering, ...] = (composite("aten::one_hot", _one_hot),)
