# SPDX-License-Identifier: Apache-2.0
"""Ways to write one call of a model in an ahead-of-time file: by position, by name, by default.

The file has the call of its example. Another that binds the same values to the parameters of
the model's ``forward`` is brought into that form, as Python would; the values themselves are
compared by `ahead_call`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class BadCall(Exception):
    """A call that the parameters of the model do not allow; the text says why."""


def stated_parameters(
    model: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters of a model and which of them its example gave, as plain JSON."""
    parameters = inspect.signature(model.forward).parameters.values()
    ordered = [p for p in parameters if p.kind in _BY_POSITION]
    more = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    keywords = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    keywords += [p.name for p in ordered if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return {
        # A leading slash, which no name has: this one has a place only.
        "ordered": [p.name if p.name in keywords else f"/{p.name}" for p in ordered],
        "keywords": None if more else keywords,
        "defaults": {p.name: p.default for p in parameters if _is_plain(p.default)},
        "by_position": len(args),
        "by_name": list(kwargs),
    }


def _is_plain(value: Any) -> bool:
    return value is None or type(value) in (bool, int, float, str)


def arranged(
    stated: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """A call in the form of the example, as far as it gives the same parameters.

    Raises:
        BadCall: a name that no parameter has, or a parameter given twice.
    """
    by_name = stated["by_name"]
    if len(args) == stated["by_position"] and kwargs.keys() == set(by_name):
        return list(args), dict(kwargs)
    ordered, defaults = stated["ordered"], stated["defaults"]
    given = dict(zip(ordered, args, strict=False))
    _refuse_names(stated, given, kwargs)
    given.update(kwargs)
    values = {**defaults, **given}
    first = ordered[: stated["by_position"]]
    present = next((i for i, name in enumerate(first) if name not in values), len(first))
    placed = [*(values[name] for name in first[:present]), *args[len(ordered) :]]
    named = {name: values[name] for name in by_name if name in values}
    for name, value in given.items():
        used = name in named or name in first[:present]
        if not used and not (name in defaults and _is_same(value, defaults[name])):
            named[name] = value
    return placed, named


def _refuse_names(
    stated: Mapping[str, Any], given: Mapping[str, Any], kwargs: Mapping[str, Any]
) -> None:
    known = stated["keywords"]
    for name in kwargs:
        if name in given:
            raise BadCall(f"the argument {name} is given by position and by name")
        if known is not None and name not in known:
            names = ", ".join(
                n.removeprefix("/") for n in dict.fromkeys([*stated["ordered"], *known])
            )
            raise BadCall(f"it has no argument of the name {name!r}; those it has are {names}")


def _is_same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)
