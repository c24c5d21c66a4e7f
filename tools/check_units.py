# SPDX-License-Identifier: Apache-2.0
"""No two sources of an extension give one name to things of their own.

An installation compiles several sources as one unit (`compiled_part.gathered`), where their
anonymous namespaces are one: a name in two of them clashes, or overloads, as soon as the sizes of
files put both into one unit. Found by a heuristic: what is declared directly in a `namespace {`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from check_sizes import blanked
from sources import ROOT, Problem, report

ANONYMOUS = re.compile(r"\bnamespace\s*\{")
TYPE = re.compile(r"^(?:template\s*<[^{;]*>\s*)?(?:struct|class|union|enum(?:\s+class)?)\s+(\w+)")
ALIAS = re.compile(r"^(?:template\s*<[^{;]*>\s*)?using\s+(\w+)\s*$")
FUNCTION = re.compile(r"(?<![\w:])(\w+)\s*\(")
VARIABLE = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)?$")


def _name(head: str) -> str | None:
    """The name that a declaration gives, from its text up to its body, value or end."""
    patterns = (TYPE, FUNCTION) if "(" in head else (TYPE, ALIAS, VARIABLE)
    return next((found[1] for pattern in patterns if (found := pattern.search(head))), None)


def own_names(text: str) -> Iterator[tuple[str, int]]:
    """Names declared directly in the anonymous namespaces of a C++ source, and their lines.

    Those of a method defined outside its class are not: their name is qualified.
    """
    text = blanked(text)
    for namespace in ANONYMOUS.finditer(text):
        depth, start, fresh = 0, namespace.end(), True
        for match in re.finditer(r"[{};=]", text[namespace.end() :]):
            position, sign = namespace.end() + match.start(), match.group()
            if depth == 0 and fresh and sign != "}":
                head = text[start:position].strip()
                name = _name(head)
                if name and not name.isupper():  # a macro's call names nothing
                    at = start + len(text[start:position]) - len(text[start:position].lstrip())
                    yield name, text.count("\n", 0, at) + 1
            depth += {"{": 1, "}": -1}.get(sign, 0)
            if depth < 0:
                break
            # A value, or a body that a `;` may follow, belongs to what was named before it.
            fresh = depth == 0 and (sign == ";" or (sign == "}" and not _continues(text, position)))
            start = position + 1 if depth == 0 else start


def _continues(text: str, brace: int) -> bool:
    return re.match(r"\s*[;,)(]", text[brace + 1 :]) is not None


def check(folder: Path, root: Path) -> list[Problem]:
    """Names that a source shares with an earlier one of its folder."""
    problems: list[Problem] = []
    first: dict[str, Path] = {}
    for path in sorted(folder.glob("*.cpp")):
        for name, line in own_names(path.read_text(encoding="utf-8")):
            if (other := first.setdefault(name, path)) != path:
                message = f"{name} is a name of {other.name} as well: rename one, or share it"
                problems.append(Problem(path=path.relative_to(root), line=line, message=message))
    return problems


def main(root: Path = ROOT) -> int:
    """Check the repository; 0 if every source can be compiled beside any other."""
    folders = sorted({path.parent for path in root.glob("packages/*/csrc/**/*.cpp")})
    return report([p for folder in folders for p in check(folder, root)], "check_units")


if __name__ == "__main__":
    raise SystemExit(main())
