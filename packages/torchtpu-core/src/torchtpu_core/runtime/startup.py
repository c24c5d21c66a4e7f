# SPDX-License-Identifier: Apache-2.0
"""Starting the device: at the first tensor, not at import."""

from __future__ import annotations

import atexit
from collections.abc import Callable
from typing import Any

import torch

from torchtpu_core import _C, env_values, env_vars, plugins
from torchtpu_core.errors import EnvironmentVariableError, LoweringTableError
from torchtpu_core.lowering import memory_formats, mxu
from torchtpu_core.lowering.masks import check_masks, expand_masks, needs_mask_expansion
from torchtpu_core.lowering.table import Kind, Lowering
from torchtpu_core.runtime import (
    attention_batches,
    autocast_layers,
    autograd_threads,
    clients,
    expanded,
    fake_results,
    host_search,
    inference,
    modes,
    packed_sequences,
    recurrent_layers,
    sparse,
    tables,
)
from torchtpu_core.runtime.current import TargetKind, target
from torchtpu_core.runtime.number_ranges import rules_of
from torchtpu_core.runtime.sharing import APART, sharing_of
from torchtpu_core.runtime.sparse import gradients
from torchtpu_core.runtime.variants import is_left_to_torch, is_only_out, schemas_of

#: Ops that work without an execution mode: core can create, copy and print tensors.
_STRUCTURAL = frozenset({"aten::fill_.Scalar", "aten::fill_.Tensor", "aten::zero_"})
_TAKES_MASKS = ("aten::index", "aten::index_put", "aten::_index_put_impl")
#: PyTorch documents a host tensor as their operand.
_UPLOADS = ("aten::_foreach_addcdiv", "aten::_foreach_addcmul")
#: PyTorch's meta kernels refuse calls that CPU takes: products of groups that are not
#: bfloat16, LSTM cells without biases; or state another shape: the unreduced margin loss
#: of one sample. Their lowerings state the results.
_UNSTATED = (
    "aten::_grouped_mm",
    "aten::_native_multi_head_attention",
    "aten::_thnn_fused_lstm_cell",
    "aten::multilabel_margin_loss_forward",
)
#: Results are the operands' elements: the host can join them in the device's memory.
_JOINS = ("aten::cat", "aten::stack")
#: Their numbers decide the size of the result and are operands nevertheless.
_RANGES = ("aten::arange", "aten::range")
#: Families whose products follow ``torch.set_float32_matmul_precision``: it is part of
#: their programs' key.
_CONTRACTING = frozenset(
    f"torchtpu_core.lowering.{family}"
    for family in (
        *("attention", "convolution", "distances", "foreach", "matmul", "recurrent"),
        *("recurrent_layers", "transformer"),
    )
)
_libraries: dict[str, torch.library.Library] = {}


def start() -> None:
    """Make the client, join the tables, register the recorder, enter the mode."""
    atexit.register(autograd_threads.wait)
    plugins.manager()  # may declare variables of their own
    env_vars.check_names()
    _choose_numerics()
    clients.client()
    tables.clear()
    tables.add(tables.core_rows(), tables.CORE)
    for plugin, rows in plugins.collect("torchtpu_register_lowerings"):
        try:
            tables.add(rows, f"plugin {plugin!r}")
        except LoweringTableError as error:
            plugins.warn(plugin, "its lowerings were refused", error)
    for row in tables.current().values():
        register(row)
    sparse.register(_library("aten::"))
    recurrent_layers.register()
    packed_sequences.register()
    autocast_layers.register()
    attention_batches.register(_library("aten::"))
    fake_results.register()
    _C.set_copy_op(tables.current()["aten::copy"])
    _limit_memory()
    # XLA:CPU drops barriers before it removes common subexpressions (jaxlib 0.10.2).
    _C.cut_recomputation(clients.client().platform == "cpu")
    _C.log_flushes(env_values.LogTopic.FLUSHES in env_vars.settings().log)
    modes.load()
    for plugin, functions in plugins.collect("torchtpu_register_kernels"):
        _define_kernels(plugin, functions)


def _choose_numerics() -> None:
    """Round as an MXU does if the user asks for it and the device is simulated.

    Raises:
        EnvironmentVariableError: the target has no chip to imitate.
    """
    if env_vars.settings().numerics is not env_values.Numerics.TPU:
        return
    if target().target.kind is TargetKind.CPU:
        raise EnvironmentVariableError(
            "TORCH_TPU_NUMERICS=tpu imitates the rounding of a chip, and the target 'cpu' has "
            "none. Set TORCH_TPU_TARGET to a simulated slice such as v5e:1x1, or unset "
            "TORCH_TPU_NUMERICS."
        )
    mxu.simulate(target().simulated)


def _contracts(row: Lowering) -> bool:
    """Whether the row makes, or may be made of, matrix products."""
    module = getattr(row.function, "__module__", "")
    return row.kind is Kind.DECOMPOSITION or module in _CONTRACTING


def register(row: Lowering) -> None:
    """Serve the row's overload, and its in-place and out= forms, on the device."""
    if row.kind is Kind.HOST:
        return
    if row.kind is Kind.COMPOSITE:
        function = host_search.kernel(row.overload) or row.function
        assert function is not None
        _library(row.overload).impl(
            row.overload.partition("::")[2], function, "PrivateUse1", allow_override=True
        )
        return
    for name, schema in schemas_of(row.overload):
        if name != row.overload and name in tables.current():
            continue  # this form has a row of its own
        if is_left_to_torch(name, schema):
            continue
        options: dict[str, Any] = {"numbers": rules_of(name)}
        if name in _STRUCTURAL:
            options["structural"] = True
        if name == row.overload and is_only_out(schema):
            options["only_out"] = True
        base = name.partition(".")[0].rstrip("_")
        if base in _TAKES_MASKS:
            options["prepare"] = _with_integer_indices
        if name in gradients.MAKERS:
            options["prepare"], options["prepare_if"] = gradients.make, "sparse"
        if name.partition(".")[0] in expanded.KERNELS:
            options["expanded"] = expanded.write
        if base in _RANGES and row.overload == name:
            options["ranged"] = True
        if _contracts(row):
            options["contracts"] = True
        if schema.is_mutable and (sharing := sharing_of(name)):
            options["sharing"] = sharing
        if base in APART:
            options["apart"] = True
        if base in _UNSTATED or name in memory_formats.RULES or name in inference.CORRECTIONS:
            options["unstated"] = True
        if base in _UPLOADS:
            options["uploads"] = True
        if name in _JOINS and clients.client().platform == "cpu":
            options["joins"] = True
        _C.register_op(name, row, options)


def _library(overload: str) -> torch.library.Library:
    namespace = overload.partition("::")[0]
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "IMPL")
    return _libraries[namespace]


def _with_integer_indices(name: str, self: torch.Tensor, indices: list[Any], *rest: Any) -> Any:
    """Replay an indexing op whose index list holds masks or host tensors.

    Returns None if it can be recorded as it is: a write through one mask.
    """
    check_masks(self.shape, indices)
    moved = [None if i is None else i.to(self.device) for i in indices]
    if needs_mask_expansion(name, moved):
        moved = expand_masks(moved)
    elif all(a is b for a, b in zip(moved, indices, strict=True)):
        return None
    base, _, variant = name.partition("::")[2].partition(".")
    return getattr(getattr(torch.ops.aten, base), variant or "default")(self, moved, *rest)


def _limit_memory() -> None:
    limit = target().target.hbm_bytes_per_device
    for device in range(target().device_count):
        _C.set_memory_limit(device, limit or 0)


def _define_kernels(plugin: str, functions: Any) -> None:
    for function in functions:
        define: Callable[[], Any] = function
        try:
            define()
        except Exception as error:
            plugins.warn(
                plugin, f"its kernel {getattr(function, '__name__', function)!r} failed", error
            )
