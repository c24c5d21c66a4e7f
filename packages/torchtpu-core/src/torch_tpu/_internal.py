# SPDX-License-Identifier: Apache-2.0
"""What code that torch 2.13's Inductor writes for `tpu` imports; it says what to install.

`torchtpu-compile` takes the device's graphs before Inductor writes code for them. Without it the
generated module stops at this import, and the user sees the error below.
"""

from __future__ import annotations

from torch_tpu._extras import require

require("torchtpu_compile", "compile", "torch.compile of code on tpu")
raise ImportError(
    "Inductor generated code of its own for device 'tpu': torchtpu-compile is installed and "
    "did not take the graph over: is its plugin turned off by TORCH_TPU_DISABLE_PLUGINS, or does "
    "`torchtpu doctor` report it as failed? torch.compile(..., backend='tpu') tells."
)
