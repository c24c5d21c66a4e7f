# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses from the tables of a file, with errors that name the key.

Nothing here knows what a table means. Unknown keys are errors that suggest the nearest
known one; numbers are converted to the type that the field states.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from torchtpu_core.errors import SpecError, did_you_mean

T = TypeVar("T")


def build(cls: type[T], table: Mapping[str, Any], where: str) -> T:
    """An instance of a dataclass from a table of a file.

    Args:
        cls: a dataclass; fields without a default are required.
        table: values by field name; a nested dataclass takes a nested table.
        where: how errors call the table.

    Raises:
        SpecError: an unknown key, a missing one, or a value of the wrong type.
    """
    if not isinstance(table, Mapping):
        raise SpecError(f"{where} is a table of keys and values, not {table!r}.")
    hints = typing.get_type_hints(cls)
    known = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise SpecError(
                f"{where} has no key {key!r}.{did_you_mean(key, known)} "
                f"Known keys: {', '.join(known)}."
            )
        values[key] = _convert(hints[key], value, f"{where}.{key}")
        _check_sign(known[key], values[key], f"{where}.{key}")
    for name, field in known.items():
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise SpecError(f"{where} lacks the key {name!r}, which has no default.")
    try:
        return cls(**values)
    except ValueError as error:
        raise SpecError(f"{where}: {error}") from error


def _check_sign(field: dataclasses.Field[Any], value: Any, where: str) -> None:
    """Refuses numbers that count nothing: below zero, or zero where there is no default.

    A default below zero is a word of its own, such as -1 for "what is left".
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value == field.default:
        return
    least = 0 if field.default is not dataclasses.MISSING else math.ulp(0.0)
    if not least <= value < math.inf:
        raise SpecError(
            f"{where} is a number {'above' if least else 'of at least'} 0, not {value}."
        )


def _convert(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        inner = [part for part in typing.get_args(hint) if part is not type(None)]
        return None if value is None else _convert(inner[0], value, where)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where)
    if typing.get_origin(hint) is tuple:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise SpecError(f"{where} is a list, not {value!r}.")
        return tuple(_convert(typing.get_args(hint)[0], item, where) for item in value)
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if hint is str and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise SpecError(f"{where} is of type {hint.__name__}, not {value!r}.")
    return value
