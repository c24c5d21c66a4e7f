# SPDX-License-Identifier: Apache-2.0
"""How errors of other ranks are told."""

from __future__ import annotations

import pytest
from torchtpu_distributed.errors import in_words


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no batch is left."), "ValueError: no batch is left"),
        (ValueError("no batch"), "ValueError: no batch"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_exception_in_a_sentence_has_no_full_stop_of_its_own(error, words):
    assert in_words(error) == words
