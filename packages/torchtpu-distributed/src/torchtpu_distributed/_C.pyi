# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled part; documented in csrc/."""

from typing import Any

def make_backend(rank: int, size: int, timeout_s: float, implementation: Any, gloo: Any) -> Any: ...
