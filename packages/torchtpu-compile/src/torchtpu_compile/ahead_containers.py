# SPDX-License-Identifier: Apache-2.0
"""Containers of arguments and results, stated as plain JSON.

A container is its kind and what is in it, a leaf is ``null``. Tuples, lists and dicts are made
anew from that. Named tuples and dataclasses (such as Hugging Face's ``ModelOutput``) are looked
up by name among the classes that are imported already; reading a file imports nothing, so
where a class is not there, a named tuple with its fields takes its place.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils import _pytree as pytree

#: Kinds of containers. One registered with PyTorch's pytree is stated by PyTorch itself.
_LIST, _TUPLE, _DICT, _FIELDS, _REGISTERED = "list", "tuple", "dict", "fields", "registered"
_KEYS = (str, int, float, bool, type(None))

Container = list[Any] | None


class UnknownContainer(Exception):
    """A container that cannot be stated; the text says which."""


def flatten(value: Any, *, in_order: bool = False) -> tuple[Container, list[Any]]:
    """What a value's containers are, and their leaves.

    Args:
        value: anything.
        in_order: take the keys of dicts in order, for callers give them in any.

    Raises:
        UnknownContainer: a container that cannot be stated.
    """
    opened = _opened(value, in_order)
    if opened is None:
        return None, [value]
    head, children = opened
    parts = [flatten(child, in_order=in_order) for child in children]
    return [*head, [stated for stated, _ in parts]], [x for _, leaves in parts for x in leaves]


def _opened(value: Any, in_order: bool) -> tuple[list[Any], Sequence[Any]] | None:
    """The head of a container and its items; None: a leaf."""
    names = _fields(type(value))
    if names is not None:
        return [_FIELDS, _name(type(value)), names], [getattr(value, name) for name in names]
    if pytree.is_structseq(value):
        return [_FIELDS, _name(type(value)), list(type(value).__match_args__)], value
    if isinstance(value, (list, tuple)):
        return [_LIST if isinstance(value, list) else _TUPLE], value
    if isinstance(value, dict) and all(type(key) in _KEYS for key in value):
        keys = sorted(value, key=str) if in_order else list(value)
        return [_DICT, keys], [value[key] for key in keys]
    children, spec = pytree.tree_flatten(value, is_leaf=lambda x: x is not value)
    if spec.is_leaf():
        return None
    try:
        return [_REGISTERED, pytree.treespec_dumps(spec)], children
    except (NotImplementedError, TypeError) as error:
        reason = str(error).partition(" because")[0].partition(". ")[0]
        raise UnknownContainer(f"{type(value).__name__} ({reason})") from error


def unflatten(stated: Container, leaves: Iterator[Any]) -> Any:
    """The value whose leaves are the next of `leaves`.

    Raises:
        ValueError: no such container, or a class of PyTorch's pytree that is not registered here.
    """
    if stated is None:
        return next(leaves)
    kind, *details, inside = stated
    items = [unflatten(part, leaves) for part in inside]
    if kind == _LIST:
        return items
    if kind == _TUPLE:
        return tuple(items)
    if kind == _DICT:
        return dict(zip(*details, items, strict=True))
    if kind == _FIELDS:
        return _maker(*details)(items)
    if kind == _REGISTERED:
        return pytree.tree_unflatten(items, _registered(*details))
    raise ValueError(f"{kind!r} is no kind of container")


def leaf_count(stated: Container) -> int:
    """How many leaves the containers have."""
    return 1 if stated is None else sum(leaf_count(part) for part in stated[-1])


def shown(stated: Container, texts: Iterator[str]) -> str:
    """A value as text, from the texts of its leaves."""
    if stated is None:
        return next(texts)
    kind, *details, inside = stated
    items = [shown(part, texts) for part in inside]
    if kind == _DICT:
        pairs = zip(details[0], items, strict=True)
        return "{" + ", ".join(f"{key!r}: {item}" for key, item in pairs) + "}"
    if kind == _FIELDS:
        pairs = zip(details[1], items, strict=True)
        name = details[0].rpartition(":")[2].rpartition(".")[2]
        return f"{name}({', '.join(f'{key}={item}' for key, item in pairs)})"
    if kind == _TUPLE:
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
    return f"[{', '.join(items)}]"


@contextlib.contextmanager
def registered_dataclasses(value: Any) -> Iterator[None]:
    """Let `torch.export` see into the dataclasses in a value, for as long as the block runs."""
    added: list[type] = []
    try:
        while new := _unregistered(value):
            for cls in new:
                pytree.register_dataclass(cls, serialized_type_name=_name(cls))
                added.append(cls)
        yield
    finally:
        for cls in added:
            pytree._deregister_pytree_node(cls)


def _unregistered(value: Any) -> list[type]:
    leaves = pytree.tree_leaves(value)
    return list(dict.fromkeys(type(x) for x in leaves if dataclasses.is_dataclass(type(x))))


def _fields(cls: type) -> list[str] | None:
    """The fields of a dataclass or a named tuple."""
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if field.init]
    if pytree.is_namedtuple_class(cls):
        return list(cls._fields)  # type: ignore[attr-defined]
    return None


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _maker(name: str, fields: list[str]) -> Callable[[list[Any]], Any]:
    """What makes an object of a class from its fields."""
    cls = _imported(name)
    if isinstance(cls, type) and _fields(cls) == fields:
        return lambda items: cls(**dict(zip(fields, items, strict=True)))
    if isinstance(cls, type) and pytree.is_structseq_class(cls):
        return cls
    last = name.rpartition(":")[2].rpartition(".")[2]
    stand_in: Any = collections.namedtuple(last, fields, rename=True)  # type: ignore[misc]
    return lambda items: stand_in(*items)


def _imported(name: str) -> Any:
    """The class of a name, if its module is imported and has it."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _registered(text: str) -> pytree.TreeSpec:
    try:
        return pytree.treespec_loads(text)
    except (NotImplementedError, LookupError) as error:
        raise ValueError(
            f"it returns a container that is not registered here: {error}; import its module before"
        ) from error
