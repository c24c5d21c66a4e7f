# SPDX-License-Identifier: Apache-2.0
"""The command `torchtpu`."""

from __future__ import annotations

from torchtpu_core.cli.app import main, make_app

__all__ = ["main", "make_app"]
