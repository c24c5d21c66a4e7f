# SPDX-License-Identifier: Apache-2.0
"""Workloads described by a small file, and their simulated step time."""

from torchtpu_core.workloads.prediction import StepPrediction as StepPrediction
from torchtpu_core.workloads.spec import Spec as Spec
from torchtpu_core.workloads.spec_files import read_spec as read_spec
from torchtpu_core.workloads.spec_files import read_specs as read_specs
from torchtpu_core.workloads.training import predict_step as predict_step
