# SPDX-License-Identifier: Apache-2.0
"""Whole-graph compilation and StableHLO export, from `torchtpu-compile`."""

from __future__ import annotations

from torch_tpu._extras import require

_export = require("torchtpu_compile.export", "compile", "torch_tpu.compile")
_explanation = require("torchtpu_compile.explanation", "compile", "torch_tpu.compile")
_ahead = require("torchtpu_compile.ahead", "compile", "torch_tpu.compile")
_options = require("torchtpu_compile.options", "compile", "torch_tpu.compile")
export_stablehlo = _export.export_stablehlo
CompileOptions = _options.CompileOptions
explain = _explanation.explain
aot = _ahead.aot
load = _ahead.load

__all__ = ["CompileOptions", "aot", "explain", "export_stablehlo", "load"]
