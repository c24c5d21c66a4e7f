# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between Dynamo's graph and a program."""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FunctionType
from typing import Any, Self

import jax
import torch
from torchtpu_core.errors import TorchTPUError, did_you_mean
from torchtpu_core.lowering import checks, refusals
from torchtpu_core.runtime.bridge import is_user_file

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)
_PYTHON = str(Path(traceback.__file__).parent)
#: In the meta of an assertion that we made: the class of the error; RuntimeError without it.
ASSERTED = "torchtpu_error"
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


class CompileOptionError(TorchTPUError, ValueError):
    """An option of ``torch.compile(..., backend="tpu")`` that does not exist or is not built.

    Why: an option that is ignored silently costs more than an error.
    Fix: use an option in the message.
    """

    @classmethod
    def unknown(cls, name: str, known: Iterable[str]) -> Self:
        """The error for an option nobody knows."""
        names = sorted(known)
        return cls(
            f"backend 'tpu' of torch.compile has no option {name!r}.{did_you_mean(name, names)} "
            f"Known options: {', '.join(names)}."
        )

    @classmethod
    def not_supported(cls, name: str, supported: Iterable[str]) -> Self:
        """The error for an option that is reserved and has no effect yet."""
        return cls(
            f"option {name!r} of torch.compile backend 'tpu' is not supported yet; leave it out. "
            f"Supported now: {', '.join(sorted(supported))}."
        )


class GraphError(TorchTPUError):
    """A node of a compiled graph that could not be lowered or run.

    Fix: change the line the message names, or keep it out of the graph with
    ``torch.compiler.disable``.
    """

    @classmethod
    def at_node(cls, node: torch.fx.Node, error: BaseException) -> Self:
        """The error for a node, with the user's line that made it.

        Its class is also that of the error, if a user may catch it as such.
        """
        kind = next((k for k in _CAUGHT if isinstance(error, k)), None)
        return _of_kind(kind)(f"{describe(node)} failed: {type(error).__name__}: {error}")


#: Classes by which users catch what CPU PyTorch raises.
_CAUGHT = (NotImplementedError, IndexError, ValueError, TypeError)


@functools.cache
def _of_kind(kind: type[Exception] | None) -> Any:
    """The class of graph errors that are of a kind too."""
    if kind is None:
        return GraphError
    return type("GraphError", (GraphError, kind), {"__doc__": GraphError.__doc__})


class AOTFileError(TorchTPUError, RuntimeError):
    """A file of `torch_tpu.compile.aot` that cannot be loaded here.

    Fix: make it anew with `torch_tpu.compile.aot`, for this target and these versions.
    """


def _frame(node: torch.fx.Node) -> re.Match[str] | None:
    """The call that made a node: the user's innermost frame, not one of a library of the device."""
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    own = [frame for frame in frames if is_user_file(frame["file"])]
    return (own or frames)[-1] if frames else None


def user_line(node: torch.fx.Node) -> str:
    """``file:line in function`` of the call that made a node, or an empty string."""
    frame = _frame(node)
    return f"{frame['file']}:{frame['line']} in {frame['function']}" if frame else ""


def caller_at(node: torch.fx.Node) -> Callable[[Any, Any, Any], Any]:
    """A function ``call(target, args, kwargs)`` whose frame stands at the user's line.

    Whoever looks for that line, as records of collectives, warnings and tracebacks do, finds the
    call that made the node instead of the line that called the compiled function.
    """
    frame = _frame(node)
    return _caller(frame["file"], int(frame["line"]), frame["function"]) if frame else _call


@functools.cache
def _caller(file: str, line: int, function: str) -> Callable[[Any, Any, Any], Any]:
    first = _call.__code__.co_firstlineno
    below = next(at for *_, at in _call.__code__.co_lines() if at and at > first) - first
    code = _call.__code__.replace(
        co_filename=file, co_name=function, co_qualname=function, co_firstlineno=line - below
    )
    return FunctionType(code, {})


def _call(target: Any, args: Any, kwargs: Any) -> Any:
    return target(*args, **kwargs)


def line_of(error: BaseException) -> str:
    """`` (at file:line in function)``, the user's innermost frame under an error, or nothing."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((_TORCH, _HERE, _PYTHON)) and frame.filename[:1] != "<"
    ]
    return f" (at {own[-1].filename}:{own[-1].lineno} in {own[-1].name})" if own else ""


def scope_of(node: torch.fx.Node) -> str:
    """``model.py:12`` of the call that made a node, else its name, for StableHLO."""
    line = user_line(node).partition(" in ")[0]
    return line.rpartition("/")[2] or node.name


def describe(node: torch.fx.Node) -> str:
    """A node's op and the user's line."""
    line = user_line(node)
    # An op whose effects have an order is an argument of what keeps it.
    op = node.args[1] if node.target is torch.ops.higher_order.with_effects else node.target
    return f"{op} in a compiled graph" + (f" (called at {line})" if line else "")


def require_true(
    node: torch.fx.Node,
    condition: jax.Array,
    message: str = "Expected Tensor with single nonzero value, but got zero",
) -> None:
    """Let the program report that the condition of an assertion does not hold."""
    checks.require(condition != 0, node.meta.get(ASSERTED, RuntimeError), message)


def refuse_dtypes(nodes: Iterable[torch.fx.Node]) -> None:
    """Raise for a call whose dtypes CPU PyTorch refuses although its meta kernel does not.

    Raises:
        GraphError: in CPU's words, with the user's line.
    """
    for node in nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        check = refusals.DTYPES.get(node.target._schema.name.rstrip("_"))
        if check is None:
            continue
        try:
            check(_arguments(node))
        except Exception as error:
            raise GraphError.at_node(node, error) from error


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """A node's arguments by their names in the op's schema, tensors as the tracer saw them."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    given = node.target._schema.arguments  # type: ignore[union-attr]
    positional = dict(zip((a.name for a in given), args, strict=False))
    return {**{a.name: a.default_value for a in given}, **positional, **kwargs}
