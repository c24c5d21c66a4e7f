# SPDX-License-Identifier: Apache-2.0
"""Every module and public name is documented, and the names others rely on do not just vanish.

Documented: a module opens with an SPDX line and a docstring; public functions, classes and
methods of public modules have one. A function of a module that ends with a lowering ``TABLE``
needs none: it is documented by the operator it implements.

Relied on: the names of the facade ``torch_tpu`` and the hooks are listed in
``public_names.txt``. A name that is gone from the code needs a changelog fragment of the kind
``removal`` and leaves the list with ``--write``; so does a new one enter it.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

from sources import ROOT, Problem, files, modules, report, tree

FACADE = "torch_tpu"
HOOKS = "torchtpu_core.hookspecs"
SPDX = "# SPDX-License-Identifier: Apache-2.0"
LIST = Path("tools", "public_names.txt")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
OVERRIDES = frozenset({"typing.override", "override", "overload", "typing.overload"})


def _is_public(name: str) -> bool:
    return not any(part.startswith("_") for part in name.split("."))


def _needs_docstring(node: Definition) -> bool:
    decorators = {ast.unparse(d).removeprefix("torch.") for d in node.decorator_list}
    return _is_public(node.name) and not decorators & OVERRIDES and "register" not in node.name


def undocumented(body: list[ast.stmt], inside: str = "") -> Iterator[tuple[str, int]]:
    """Public definitions of a module or class body that lack a docstring."""
    for node in body:
        if isinstance(node, Definition) and _needs_docstring(node):
            name = f"{inside}{node.name}"
            if ast.get_docstring(node) is None:
                yield name, node.lineno
            if isinstance(node, ast.ClassDef):
                yield from undocumented(node.body, f"{name}.")


def has_table(module: ast.Module) -> bool:
    """Whether a module defines a lowering ``TABLE``."""
    return any(
        isinstance(target, ast.Name) and target.id == "TABLE"
        for node in module.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )


def documentation_problems(root: Path) -> Iterator[Problem]:
    """Missing SPDX lines, module docstrings and docstrings."""
    for path in files(root, (".py",)):
        text = path.read_text(encoding="utf-8")
        relative = path.relative_to(root)
        if not text.startswith(SPDX):
            yield Problem(path=relative, line=1, message=f"the first line must be {SPDX!r}")
        if ast.get_docstring(tree(path)) is None:
            yield Problem(path=relative, line=1, message="the module has no docstring")
    for name, path in modules(root).items():
        if not _is_public(name):
            continue
        module = tree(path)
        body = module.body
        if has_table(module):
            body = [node for node in body if isinstance(node, ast.ClassDef)]
        for definition, line in undocumented(body):
            message = f"public {definition} has no docstring"
            yield Problem(path=path.relative_to(root), line=line, message=message)


def _literal_names(value: ast.expr | None) -> list[str]:
    """The strings of a literal list or tuple, or the string keys of a literal dict."""
    if isinstance(value, ast.Dict):
        items: list[ast.expr] = [key for key in value.keys if key is not None]
    else:
        items = value.elts if isinstance(value, (ast.List, ast.Tuple, ast.Set)) else []
    return [i.value for i in items if isinstance(i, ast.Constant) and isinstance(i.value, str)]


def exported(module: ast.Module) -> set[str]:
    """The public names a module offers: ``__all__`` if it has one, else what it defines."""
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, Definition):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            names.update(a.asname or a.name for a in node.names if a.asname == a.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id == "__all__":
                    return set(_literal_names(node.value))
                if isinstance(target, ast.Name):
                    names.add(target.id)
    return {name for name in names if _is_public(name)}


def relied_on(root: Path) -> set[str]:
    """The names of the facade and of the hooks, dotted, with their modules."""
    names: set[str] = set()
    for module, path in modules(root).items():
        if module.partition(".")[0] == FACADE and _is_public(module):
            names.add(module)
            names.update(f"{module}.{name}" for name in exported(tree(path)))
        elif module == HOOKS:
            hooks = {n for n in exported(tree(path)) if n.startswith("torchtpu_")}
            names.update(f"hook {name}" for name in hooks)
    return names


def list_problems(root: Path) -> Iterator[Problem]:
    """Differences between the code and the list."""
    path = root / LIST
    listed = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else set()
    present = relied_on(root)
    removal = any((root / "changelog").glob("*.removal.md"))
    for name in sorted(listed - present):
        if removal:
            message = f"{name} was removed: update the list with --write"
        else:
            message = f"{name} was removed: restore it, or add changelog/<id>.removal.md first"
        yield Problem(path=LIST, line=1, message=message)
    for name in sorted(present - listed):
        message = f"{name} is new: document it and update the list with --write"
        yield Problem(path=LIST, line=1, message=message)


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    """Check the repository, or rewrite the list; 0 if all is well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"rewrite {LIST}")
    if parser.parse_args(argv).write:
        (root / LIST).write_text("".join(f"{name}\n" for name in sorted(relied_on(root))))
    return report([*documentation_problems(root), *list_problems(root)], "check_public_names")


if __name__ == "__main__":
    raise SystemExit(main())
