# SPDX-License-Identifier: Apache-2.0
"""Published measurements against the simulator's predictions."""

from torchtpu_core.validation.compare import Comparison as Comparison
from torchtpu_core.validation.compare import compare as compare
from torchtpu_core.validation.compare import lost_specs as lost_specs
from torchtpu_core.validation.rows import Row as Row
from torchtpu_core.validation.rows import read_rows as read_rows
