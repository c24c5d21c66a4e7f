# SPDX-License-Identifier: Apache-2.0
"""The process group ``tpu_dist``, from `torchtpu-distributed`."""

from __future__ import annotations

from torchtpu_core.tpu.distributed import topology_aware_mesh

from torch_tpu._extras import require

_backend = require("torchtpu_distributed.backend", "distributed", "torch_tpu.distributed")
Backend = _backend.Backend
run_as_threads = require(
    "torchtpu_distributed.threads", "distributed", "torch_tpu.distributed"
).run_as_threads
flight_recorder = require(
    "torchtpu_distributed.active", "distributed", "torch_tpu.distributed"
).flight_recorder

__all__ = ["Backend", "flight_recorder", "run_as_threads", "topology_aware_mesh"]
