# SPDX-License-Identifier: Apache-2.0
"""torch comes first, and no later step can replace it or build against another."""

from __future__ import annotations

import install


def test_steps_put_torch_first_and_build_without_isolation() -> None:
    first, *others = install.steps(["core", "eager"], None)
    assert first == ["-r", "requirements/torch.txt"]
    assert all(step[:2] == first for step in others)
    assert others[-1][2:] == [
        "--no-build-isolation",
        "./packages/torchtpu-core",
        "./packages/torchtpu-eager",
    ]


def test_steps_with_constraint_apply_it_to_every_call() -> None:
    steps = install.steps(["core"], "requirements/oldest.txt")
    assert all("requirements/oldest.txt" in step for step in steps)
