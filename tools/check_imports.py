# SPDX-License-Identifier: Apache-2.0
"""Who may import whom.

 - core imports no sibling; a sibling imports core's public modules and no other sibling;
 - nothing in ``torchtpu_*`` imports the facade ``torch_tpu``;
 - chip models, network, simulator, units, errors and settings reach neither torch nor JAX, not
   even through another module of core;
 - loading the autoload function, which runs inside ``import torch``, reaches no JAX;
 - the examples are plain PyTorch.

"Reach" follows what runs when a module is imported: not the bodies of functions, not
``if TYPE_CHECKING``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sources import ROOT, Problem, modules, report, tree

CORE, FACADE = "torchtpu_core", "torch_tpu"
SIBLINGS = frozenset(
    {"torchtpu_eager", "torchtpu_compile", "torchtpu_distributed", "torchtpu_kernels"}
)
OURS = SIBLINGS | {CORE, FACADE}
FRAMEWORKS = frozenset({"torch", "jax", "jaxlib"})
#: Modules of core, with all below them, that can be used without torch and JAX.
FREE_OF_FRAMEWORKS = (
    "cache",
    "hardware",
    "ici",
    "simulator",
    "workloads",
    "validation",
    "units",
    "errors",
    "env_vars",
    "targets",
)
AUTOLOAD = "torchtpu_core._autoload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported name.

    Attributes:
        module: the dotted module, absolute.
        name: what is taken from it, or "" for ``import module``.
        line: where.
        at_load: whether it runs when the importing module is loaded.
    """

    module: str
    name: str
    line: int
    at_load: bool

    @property
    def top(self) -> str:
        """The top-level package."""
        return self.module.partition(".")[0]


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports(module: str, path: Path) -> list[Import]:
    """All imports of a module, relative ones resolved."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]

    def walk(node: ast.AST, at_load: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(module=alias.name, name="", line=child.lineno, at_load=at_load)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                source = ".".join([*base, *([child.module] if child.module else [])])
                for alias in child.names:
                    yield Import(module=source, name=alias.name, line=child.lineno, at_load=at_load)
            lazy = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            if _is_type_checking(child):
                assert isinstance(child, ast.If)
                yield from walk(ast.Module(body=child.body, type_ignores=[]), False)
                yield from walk(ast.Module(body=child.orelse, type_ignores=[]), at_load)
            else:
                yield from walk(child, at_load and not lazy)

    return list(walk(tree(path), True))


def _is_private(item: Import) -> bool:
    parts = [*item.module.split("."), item.name]
    return any(p.startswith("_") and not p.startswith("__") for p in parts)


def boundary_problem(module: str, item: Import) -> str | None:
    """What is wrong with an import across distributions, or None."""
    own = module.partition(".")[0]
    if item.top not in OURS or item.top == own or own == FACADE:
        return None
    if item.top == FACADE:
        return f"{own} must not import the facade {FACADE}: import the module it re-exports"
    if own == CORE:
        return f"core must not import {item.top}: let it come through a hook"
    if item.top != CORE:
        return f"{own} must not import its sibling {item.top}: share through core or a hook"
    if _is_private(item):
        return f"{item.module}.{item.name} is private to core: use or add a public name"
    return None


class Graph:
    """The modules of the distributions and what each imports."""

    def __init__(self, root: Path) -> None:
        self.paths = modules(root)
        self.imports = {name: imports(name, path) for name, path in self.paths.items()}

    def loaded(self, item: Import) -> set[str]:
        """Our modules that run for an import: the module, its parents, a submodule by name."""
        parts = item.module.split(".")
        names = {".".join(parts[: i + 1]) for i in range(len(parts))}
        names.add(f"{item.module}.{item.name}")
        return names & self.paths.keys()

    def route(self, start: str, targets: frozenset[str]) -> list[str] | None:
        """The shortest chain of modules from one to a target package at load, or None."""
        parents = start.split(".")
        first = [".".join(parts) for i in range(len(parents)) if (parts := parents[: i + 1])]
        queue = [[name] for name in first if name in self.imports]
        seen = {chain[-1] for chain in queue}
        for chain in queue:
            for item in self.imports[chain[-1]]:
                if not item.at_load:
                    continue
                if item.top in targets:
                    return [*chain, item.module]
                fresh = self.loaded(item) - seen
                seen |= fresh
                queue.extend([*chain, name] for name in sorted(fresh))
        return None


def _is_free(module: str) -> bool:
    return any(
        module == f"{CORE}.{name}" or module.startswith(f"{CORE}.{name}.")
        for name in FREE_OF_FRAMEWORKS
    )


def distribution_problems(root: Path) -> Iterator[Problem]:
    """Violations in the five distributions."""
    graph = Graph(root)
    for module, path in graph.paths.items():
        relative = path.relative_to(root)
        for item in graph.imports[module]:
            message = boundary_problem(module, item)
            if message is None and _is_free(module) and item.top in FRAMEWORKS:
                message = f"{module} must work without {item.top}"
            if message is not None:
                yield Problem(path=relative, line=item.line, message=message)
        if _is_free(module) and (route := graph.route(module, FRAMEWORKS)) and len(route) > 2:
            message = f"reaches {route[-1]} through {' -> '.join(route[:-1])}"
            yield Problem(path=relative, line=1, message=message)
    route = graph.route(AUTOLOAD, frozenset({"jax", "jaxlib"}))
    if route is not None:
        path = graph.paths[AUTOLOAD].relative_to(root)
        message = f"import torch would import JAX: {' -> '.join(route)}"
        yield Problem(path=path, line=1, message=message)


def example_problems(root: Path) -> Iterator[Problem]:
    """Imports in the examples that know about this project."""
    for path in sorted(root.glob("examples/*.py")):
        for item in imports(path.stem, path):
            if item.top in OURS or item.top in {"jax", "jaxlib"}:
                message = f"an example is plain PyTorch and must not import {item.module}"
                yield Problem(path=path.relative_to(root), line=item.line, message=message)


def main(root: Path = ROOT) -> int:
    """Check the repository; 0 if every import is allowed."""
    return report([*distribution_problems(root), *example_problems(root)], "check_imports")


if __name__ == "__main__":
    raise SystemExit(main())
