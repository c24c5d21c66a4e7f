# SPDX-License-Identifier: Apache-2.0
"""A model of device time: programs counted, priced, and placed on a timeline."""

from torchtpu_core.simulator.cost import Collective as Collective
from torchtpu_core.simulator.cost import CollectiveKind as CollectiveKind
from torchtpu_core.simulator.cost import MatmulClass as MatmulClass
from torchtpu_core.simulator.cost import Precision as Precision
from torchtpu_core.simulator.cost import ProgramCost as ProgramCost
from torchtpu_core.simulator.pricing import Price as Price
from torchtpu_core.simulator.pricing import price as price
from torchtpu_core.simulator.stablehlo import program_cost as program_cost
from torchtpu_core.simulator.timeline import Timeline as Timeline
