# SPDX-License-Identifier: Apache-2.0
"""Step counts of optimizers stay where they are while Dynamo traces a step.

Dynamo moves every ``step`` it finds on the host to its parameter's device before it sets up a
parameter group, which means for CUDA that an old state was loaded. On any other device a count
is on the host from the start: setting up the second group replaced the counts of the first
after they had become operands. The graph then counted in tensors that the optimizer no
longer held, its state said step 0, and a second trace started the bias correction anew.
"""

from __future__ import annotations

from typing import Any


def keep() -> None:
    """Let Dynamo leave the counts of parameters on the device alone; others it moves as before."""
    from torch._dynamo.variables.optimizer import OptimizerVariable

    move = OptimizerVariable.move_step_if_cpu

    def move_step_if_cpu(self: Any) -> None:
        if not any(parameter.device.type == "tpu" for parameter in self.value.state):
            move(self)

    OptimizerVariable.move_step_if_cpu = move_step_if_cpu
