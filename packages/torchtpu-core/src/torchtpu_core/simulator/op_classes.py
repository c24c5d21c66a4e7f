# SPDX-License-Identifier: Apache-2.0
# data table
"""Which StableHLO operations cost what: names, not code.

`FREE` operations move, rename or make data that a fused program does not compute.
`READ_WHOLE_INPUT` operations cost by their operands, all others by their results.
"""

from __future__ import annotations


def _stablehlo(names: str) -> frozenset[str]:
    return frozenset(f"stablehlo.{name}" for name in names.split())


CALLS = frozenset({"call", "func.call", "stablehlo.composite"})
BRANCHES = _stablehlo("case if")

FREE = (
    CALLS
    | BRANCHES
    | frozenset({"return", "func.return", "sdy.return", "sdy.manual_computation"})
    | frozenset({"sdy.sharding_constraint", "sdy.reshard", "chlo.constant"})
    | _stablehlo("while return constant iota reshape transpose slice concatenate")
    | _stablehlo("broadcast broadcast_in_dim dynamic_broadcast_in_dim dynamic_slice")
    | _stablehlo("dynamic_update_slice dynamic_reshape dynamic_iota bitcast_convert")
    | _stablehlo("get_dimension_size set_dimension_size optimization_barrier tuple")
    | _stablehlo("get_tuple_element partition_id replica_id create_token after_all")
    | _stablehlo("real imag reverse pad real_dynamic_slice dynamic_pad")
)

READ_WHOLE_INPUT = _stablehlo("reduce")

_TRANSCENDENTAL = _stablehlo(
    "exponential exponential_minus_one log log_plus_one logistic tanh tan sine cosine "
    "sqrt rsqrt cbrt power atan2"
)
# chlo is the dialect of special functions; these few of it are not.
_PLAIN_CHLO = frozenset(
    {
        "chlo.top_k",
        "chlo.ragged_dot",
        "chlo.is_inf",
        "chlo.is_neg_inf",
        "chlo.is_pos_inf",
        "chlo.next_after",
    }
)


def is_transcendental(name: str) -> bool:
    """Whether an operation runs on the unit for transcendental functions."""
    if name.startswith("chlo."):
        return name not in _PLAIN_CHLO and not name.startswith("chlo.broadcast_")
    return name in _TRANSCENDENTAL
