# SPDX-License-Identifier: Apache-2.0
"""An example plugin for the `tpu` device: an operator, a chip and a command."""

from __future__ import annotations

from torchtpu_plugin_example.softcap import softcap

__all__ = ["softcap"]
