# SPDX-License-Identifier: Apache-2.0
"""Which module of a library an operator is part of, where the script only calls the whole model.

``model(batch)`` of a model from a library is one line of the script for all of its operators. The
names of its modules, as `torch.nn.Module.named_modules` gives them, tell them apart; layers that
differ in their number alone share a name.
"""

from __future__ import annotations

import contextlib
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from torchtpu_core.plan import module_hooks

#: What wrappers add to the names of what they wrap.
_WRAPPERS = frozenset(("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))


def folded(path: str) -> str:
    """A module's name for all layers like it.

    >>> folded("module.layers.11.mlp.0")
    'layers.*.mlp.*'
    """
    parts = (part for part in path.split(".") if part not in _WRAPPERS)
    return ".".join("*" if part.isdecimal() else part for part in parts)


class ModuleNames:
    """Follows the calls of modules.

    Args:
        is_library: whether a file is a library's.

    Attributes:
        label: `` in `` and the name of the innermost module, or nothing: where the innermost module
            of the user's own calls no module that calls others, its line says all.
    """

    def __init__(self, is_library: Callable[[str], bool]) -> None:
        self.label = ""
        self._is_library = is_library
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._own: dict[type[nn.Module], bool] = {}
        # Modules of libraries that the innermost module of the user's called, by name.
        self._inside: list[tuple[str, ...]] = []

    def followed(self) -> contextlib.AbstractContextManager[None]:
        """While the script runs."""
        return module_hooks.followed(self._begins, self._ends)

    def _begins(self, module: nn.Module, _: Any) -> None:
        before = self._inside[-1] if self._inside else ()
        name = self._name(module)
        self._inside.append(() if self._is_own(type(module)) else (*before, name))
        self._relabel()

    def _ends(self, *_: Any) -> None:
        self._inside.pop()
        self._relabel()

    def _relabel(self) -> None:
        names = self._inside[-1] if self._inside else ()
        self.label = f" in {names[-1]}" if len(names) > 1 and names[-1] else ""

    def _name(self, module: nn.Module) -> str:
        """The module's name in the outermost module that was called with it below."""
        if module not in self._names:
            for path, one in module.named_modules():
                self._names.setdefault(one, folded(path))
        return self._names[module]

    def _is_own(self, kind: type[nn.Module]) -> bool:
        """Whether a class's `forward` is the user's code."""
        own = self._own.get(kind)
        if own is None:
            code = getattr(inspect.unwrap(kind.forward), "__code__", None)
            own = code is not None and not self._is_library(code.co_filename)
            self._own[kind] = own
        return own
