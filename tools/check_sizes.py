# SPDX-License-Identifier: Apache-2.0
"""Files have at most 700 lines (above 400 is reported), functions at most 80.

Python functions are measured on the syntax tree. C++ functions are found by a heuristic: a
brace outside any function whose head holds a parenthesis and is no namespace, type or
initializer opens one. A file that is a table of data says so with a comment ``data table``
within its first 40 lines and may be longer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sources import ROOT, Problem, files, report, tree

SOFT_FILE_LINES = 400
HARD_FILE_LINES = 700
FUNCTION_LINES = 80
MARK = re.compile(r"^\s*(#|//) data table\b")
CPP_NOISE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<tag>\w*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    r"|^[ \t]*#(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
NO_FUNCTION = re.compile(r"\b(namespace|class|struct|union|enum)\b[^()]*$|=\s*$")


def is_data_table(text: str) -> bool:
    """Whether a file is marked as a table of data."""
    return any(MARK.match(line) for line in text.splitlines()[:40])


def python_functions(module: ast.Module) -> Iterator[tuple[str, int, int]]:
    """Name, first line and number of lines of every function, nested ones included."""
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def blanked(text: str) -> str:
    """C++ with spaces for its comments, literals and directives."""
    return CPP_NOISE.sub(_blank, text)


def cpp_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and number of lines of what looks like a function definition."""
    text = blanked(text)
    open_braces: list[tuple[bool, int, str]] = []
    head_start = 0
    for match in re.finditer(r"[{};]", text):
        position, sign = match.start(), match.group()
        inside = any(is_function for is_function, _, _ in open_braces)
        if sign == "{":
            head = text[head_start:position]
            is_function = not inside and "(" in head and not NO_FUNCTION.search(head)
            start = head_start + len(head) - len(head.lstrip())
            open_braces.append((is_function, start, head))
        elif sign == "}" and open_braces:
            is_function, start, head = open_braces.pop()
            if is_function:
                name = re.search(r"([\w:~]+)\s*\(", head)
                first = text.count("\n", 0, start) + 1
                lines = text.count("\n", start, position) + 1
                yield (name.group(1) if name else "?"), first, lines
        head_start = match.end()


def check(path: Path, root: Path) -> tuple[list[Problem], list[Problem]]:
    """Violations of one file, and what is only worth a remark."""
    text = path.read_text(encoding="utf-8")
    relative = path.relative_to(root)
    lines = len(text.splitlines())
    functions = python_functions(tree(path)) if path.suffix == ".py" else cpp_functions(text)
    violations = [
        Problem(path=relative, line=line, message=f"{name} has {n} lines, limit {FUNCTION_LINES}")
        for name, line, n in functions
        if n > FUNCTION_LINES
    ]
    remarks: list[Problem] = []
    if lines > SOFT_FILE_LINES and not is_data_table(text):
        hard = lines > HARD_FILE_LINES
        limit = HARD_FILE_LINES if hard else SOFT_FILE_LINES
        message = f"{lines} lines, {'limit' if hard else 'split above'} {limit}"
        (violations if hard else remarks).append(Problem(path=relative, line=1, message=message))
    return violations, remarks


def main(root: Path = ROOT) -> int:
    """Check the repository; 0 if no hard limit is exceeded."""
    violations: list[Problem] = []
    for path in files(root, (".py", ".cpp", ".h", ".cc", ".hpp")):
        found, remarks = check(path, root)
        violations += found
        for remark in remarks:
            print(f"remark: {remark}")
    return report(violations, "check_sizes")


if __name__ == "__main__":
    raise SystemExit(main())
