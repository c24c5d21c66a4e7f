# SPDX-License-Identifier: Apache-2.0
"""Checks of values that a plan does not have pass, whichever way they are written."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from torchtpu_core.plan.checked_values import harmless

CHECKED = """
import torch

words = torch.randint(0, 96, (8, 32), device="tpu")
if words.max() >= 96:
    raise ValueError("words beyond the table")
if not torch.all(words >= 0):
    raise ValueError("negative words")
if (
    words.min() < 0
    or not (words < 96).all() or words.max() > 95
):
    message = "words beyond the table"
    raise ValueError(message)
if words.max() < 96:
    print("checked")
else:
    raise ValueError("words beyond the table")
assert (words < 96).all(), "words beyond the table"
print("bigger" if words.sum() > 5 else "smaller")
torch.distributions.Normal(words.float(), 1.0).log_prob(words.float())
"""


def test_data_is_taken_to_pass_the_scripts_checks(planned: Callable[..., dict]) -> None:
    said = planned(CHECKED, "--target", "v5e:1x1")["said"]
    assert "checked\nbigger\n" in said


class _Asked:
    """Says what its frame is told; an answer of its own where that is nothing."""

    def __init__(self, answers: list[bool | None]) -> None:
        self._answers = answers

    def __bool__(self) -> bool:
        frame = inspect.currentframe()
        self._answers.append(harmless(frame.f_back if frame is not None else None))
        return bool(self._answers[-1])

    def item(self) -> bool:
        """As ``x.item()``."""
        frame = inspect.currentframe()
        self._answers.append(harmless(frame.f_back if frame is not None else None))
        return bool(self._answers[-1])


def test_answer_is_the_one_that_does_not_raise() -> None:
    answers: list[bool | None] = []
    asked = _Asked(answers)
    if asked:
        raise ValueError
    if not asked:
        raise ValueError(f"{answers} are not good")
    if asked or not asked.item() or bool(asked):
        raise ValueError
    if asked:
        answers.append(None)
    else:
        raise ValueError
    # As Python compiles them, not as pytest does.
    exec("assert asked, 'a message'\nassert not asked.item()", {"asked": asked})
    assert answers == [False, True, False, True, False, True, None, True, False]


def test_other_questions_have_no_answer() -> None:
    answers: list[bool | None] = []
    asked = _Asked(answers)
    if asked:
        answers.append(True)
    while asked:
        break
    value = 1 if asked else 2
    kept = asked.item()
    if asked and value == 1:
        raise ValueError
    assert (answers, value, kept) == ([None] * 5, 2, False)
    assert harmless(None) is None
