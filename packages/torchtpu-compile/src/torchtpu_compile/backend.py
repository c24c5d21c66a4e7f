# SPDX-License-Identifier: Apache-2.0
"""The Dynamo backend `tpu`.

Dynamo captures a graph, AOTAutograd makes it functional and splits forward from
backward, and each half becomes an `Executable`. The min-cut partitioner decides what
the backward pass recomputes; masks of random ops are always saved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes
from torchtpu_core.runtime import tables
from torchtpu_core.tpu import init

from torchtpu_compile import (
    inductor_ops,
    multiples,
    optimizer_steps,
    random_ops,
    records,
    saved_images,
    shortcut,
    written_inputs,
)
from torchtpu_compile.decompositions import missing_rows
from torchtpu_compile.executable import USER_OUTPUTS, Executable
from torchtpu_compile.options import CompileOptions

_DEFAULTS = CompileOptions()
_BATCH_NORM_BACKWARD = torch.ops.aten.native_batch_norm_backward.default


def tpu(
    module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a Dynamo graph for the `tpu` device.

    Args:
        module: what Dynamo captured.
        example_inputs: its inputs, fake or real.
        mode: one of torch.compile's modes; all of them give the same program.
        options: see `torchtpu_compile.options.CompileOptions`.

    Raises:
        CompileOptionError: an option that is unknown or not supported.
    """
    from torch._dynamo.backends.common import aot_autograd

    chosen = CompileOptions.parse(mode, options)
    init()
    optimizer_steps.give_back(module)
    if chosen.debug_callback is not None:
        records.call_back(chosen.name, chosen.debug_callback)

    def compiler(part: str, **settings: Any) -> Callable[..., Any]:
        return functools.partial(compile_graph, f"{chosen.name}.{part}", options=chosen, **settings)

    inferences: list[Callable[[list[Any]], list[Any]]] = []

    def inference(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        inferences.append(compiler("inference", aliases=True)(graph, inputs))
        return inferences[-1]

    compiled = aot_autograd(
        fw_compiler=compiler("forward", aliases=True),
        bw_compiler=compiler("backward"),
        inference_compiler=inference,
        partition_fn=_partition,
        decompositions=missing_rows(tables.current(), open_sizes=_is_open(module)),
        keep_inference_input_mutations=True,
    )
    # With PyTorch's switch for the numbers of eager mode, a draw that nothing uses counts.
    with torch._inductor.config.patch(fallback_random=True):
        wrapped = compiled(module, example_inputs)
    if len(inferences) == 1:
        return shortcut.direct(module, example_inputs, wrapped, inferences[0])
    return wrapped


def _is_open(module: GraphModule) -> bool:
    """Whether a size of Dynamo's graph is a symbol."""
    values = (n.meta.get("example_value") for n in module.graph.nodes)
    return any(
        isinstance(size, torch.SymInt)
        for value in values
        for size in (value.shape if isinstance(value, torch.Tensor) else (value,))
    )


def _partition(joint: GraphModule, inputs: Any, **kwargs: Any) -> tuple[GraphModule, GraphModule]:
    """The min-cut partition; the forward graph remembers which outputs are the user's.

    The partitioner keeps what a matrix product or convolution of the backward pass reads. After
    batch norm that is nearly what the norm's own gradient needs too, so it is computed again:
    a residual network keeps half as much, in the same time.
    """
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    written_inputs.save_readers(joint)
    normalises = any(n.target is _BATCH_NORM_BACKWARD for n in joint.graph.nodes)
    keeps_operands = config.ban_recompute_materialized_backward and not normalises
    with config.patch(ban_recompute_materialized_backward=keeps_operands):
        forward, backward = min_cut_rematerialization_partition(joint, inputs, **kwargs)
    forward.meta[USER_OUTPUTS] = kwargs["num_fwd_outputs"]
    saved_images.keep_channels_last(forward, backward, kwargs["num_fwd_outputs"])
    return forward, backward


def compile_graph(
    name: str,
    module: GraphModule,
    example_inputs: Sequence[Any],
    options: CompileOptions = _DEFAULTS,
    aliases: bool = False,
) -> Callable[[list[Any]], list[Any]]:
    """A functional graph as a function that takes a list and empties it (boxed)."""
    with _disable_current_modes():  # AOTAutograd calls this under its fake mode
        rows = {**inductor_ops.ROWS, **random_ops.ROWS, **tables.current()}
        multiples.fix(module.graph)
        executable = Executable(name, module, rows, options.policy, aliases)

    run = executable.entry()
    run._boxed_call = True  # type: ignore[attr-defined]
    return run
