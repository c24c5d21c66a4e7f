# SPDX-License-Identifier: Apache-2.0
"""What is lowered in another form for a TPU gives the same values, by XLA:CPU's account.

Some entries of PyTorch's operator database; all of them are
``python -m torchtpu_core.testing.tpu_forms``.
"""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
from torchtpu_core.lowering import matmul
from torchtpu_core.runtime import clients, compiling
from torchtpu_core.testing import tpu_forms

#: With a form for TPUs.
_ENTRIES = (
    "gather",
    "linalg.svd",
    "masked.sum",
    "matmul",
    "nn.functional.cross_entropy",
    "nn.functional.interpolate",
    "nn.functional.max_pool2d",
    "nn.functional.pad",
    "searchsorted",
    "sort",
)


def _text() -> str:
    with jax.enable_x64(True):
        struct = jax.ShapeDtypeStruct(
            (4, 4), jnp.int64, sharding=jax.sharding.SingleDeviceSharding(clients.devices()[0])
        )
    lowered = compiling._lower(lambda x, y: (matmul.mm(x, y),), (struct, struct), (), "product")
    return lowered.as_text()


def test_programs_inside_the_block_have_the_form_for_a_tpu() -> None:
    with tpu_forms.executed():
        inside = _text()
    assert "dot_general" not in inside  # a TPU has no such product of 64-bit integers
    assert "dot_general" in _text()


def test_forms_for_a_tpu_give_what_the_cpu_gives(tmp_path) -> None:
    # In a process of its own: programs that this one has compiled are not compiled anew.
    found = tmp_path / "found.json"
    names = ("--names", ",".join(_ENTRIES), "--samples", "3")
    command = [sys.executable, "-m", "torchtpu_core.testing.tpu_forms", *names, "--json", found]
    subprocess.run(command, check=True, timeout=600, capture_output=True)
    outcomes = json.loads(found.read_text(encoding="utf-8"))["outcomes"]
    assert len(outcomes) >= len(_ENTRIES)
    assert [o for o in outcomes if o["status"] != "pass"] == []
