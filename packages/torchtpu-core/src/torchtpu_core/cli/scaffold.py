# SPDX-License-Identifier: Apache-2.0
"""The text of a new lowering: function, row and test, made from PyTorch's schema."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ANNOTATIONS = {
    "Tensor": "jax.Array",
    "Optional[Tensor]": "jax.Array | None",
    "List[Tensor]": "Sequence[jax.Array]",
    "number": "Operand",
    "Optional[number]": "Operand | None",
    "int": "int",
    "Optional[int]": "int | None",
    "float": "float",
    "Optional[float]": "float | None",
    "bool": "bool",
    "Optional[bool]": "bool | None",
    "str": "str",
    "Optional[str]": "str | None",
    "List[int]": "Sequence[int]",
    "Optional[List[int]]": "Sequence[int] | None",
    "List[bool]": "Sequence[bool]",
}
_DROPPED = frozenset({"device", "layout", "pin_memory", "memory_format", "generator"})
_IMPORTS = {
    "Sequence": "from collections.abc import Sequence",
    "Operand": "from torchtpu_core.lowering.promotion import Operand",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """What `add_to_family` writes.

    Attributes:
        overload: full overload name.
        family: file of ``torchtpu_core/lowering``, without ``.py``.
        name: name of the lowering function.
        function: its text.
        row: the row of the table.
        test_name: name of the test function.
        test: text of the test.
    """

    overload: str
    family: str
    name: str
    function: str
    row: str
    test_name: str
    test: str


def make_scaffold(overload: str, family: str) -> Scaffold:
    """Function, row and test for an overload.

    Raises:
        ValueError: PyTorch has no such overload, or a table serves it already.
    """
    import torch

    from torchtpu_core.runtime import tables

    base, _, variant = overload.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(base)
    schema = next((s for s in schemas if s.overload_name == variant), None)
    if schema is None:
        known = ", ".join(f"{base}.{s.overload_name}".rstrip(".") for s in schemas) or "none"
        raise ValueError(f"PyTorch {torch.__version__} has no overload {overload}; it has {known}.")
    served = next((r for r in tables.core_rows() if r.overload == overload), None)
    if served is not None:
        raise ValueError(f"{overload} has a row already: it is {served.kind.value}.")
    word = re.sub(r"\W+", "_", overload.partition("::")[2]).strip("_")
    name = f"{word}_" if keyword.iskeyword(word) else word
    return Scaffold(
        overload=overload,
        family=family,
        name=name,
        function=_function(name, schema),
        row=f'    native("{overload}", {name}),',
        test_name=f"test_{word}_samples_equal_cpu",
        test=_test(overload, word, schema),
    )


def _function(name: str, schema: Any) -> str:
    positional: list[str] = []
    keywords: list[str] = []
    for argument in schema.arguments:
        if argument.name in _DROPPED or argument.is_out:
            continue
        text = f"{argument.name}: {_ANNOTATIONS.get(str(argument.type), 'Any')}"
        if argument.has_default_value():
            text += f" = {argument.default_value!r}"
        (keywords if argument.kwarg_only else positional).append(text)
    parameters = ", ".join([*positional, *(["*", *keywords] if keywords else [])])
    count = len(schema.returns)
    result = "jax.Array" if count == 1 else "tuple[" + ", ".join(["jax.Array"] * count) + "]"
    return (
        f"def {name}({parameters}) -> {result}:\n"
        f'    """``{schema}``."""\n'
        f'    raise UnsupportedOpError.for_op("{schema.name}", "its lowering is being written")\n'
    )


def _test(overload: str, word: str, schema: Any) -> str:
    entry = schema.name.partition("::")[2]
    return f'''
def test_{word}_samples_equal_cpu() -> None:
    """Every float32 sample of PyTorch's operator database, else one of the schema's shapes."""
    for arguments, keywords in database_samples("{entry}"):
        check("{overload}", *arguments, table=TABLE, **keywords)
'''


def add_to_family(scaffold: Scaffold, root: Path) -> list[Path]:
    """Put a scaffold into the family's file and its test file; which files were written.

    Raises:
        FileNotFoundError: the checkout has no such package.
    """
    source = root / "src/torchtpu_core/lowering" / f"{scaffold.family}.py"
    test = root / "tests/lowering" / f"test_{scaffold.family}.py"
    if not source.parent.is_dir():
        raise FileNotFoundError(
            f"{source.parent} does not exist. Run this at the root of a checkout, or name the "
            "package with --root."
        )
    source.write_text(_with_function(scaffold, source.read_text() if source.exists() else None))
    test.write_text(_with_test(scaffold, test.read_text() if test.exists() else None))
    return [source, test]


def _with_function(scaffold: Scaffold, text: str | None) -> str:
    if text is None:
        text = (
            "# SPDX-License-Identifier: Apache-2.0\n"
            f'"""Lowerings of {scaffold.family.replace("_", " ")}."""\n\n'
            "from __future__ import annotations\n\nimport jax\n\n"
            "from torchtpu_core.lowering.table import Lowering, native\n\n\n"
            "TABLE: tuple[Lowering, ...] = (\n)\n"
        )
    needed = [line for word, line in _IMPORTS.items() if word in scaffold.function]
    needed += ["from typing import Any"] if "Any" in scaffold.function else []
    needed.append("from torchtpu_core.errors import UnsupportedOpError")
    text = _with_imports(text, needed)
    head, marker, rest = text.rpartition("TABLE: tuple[Lowering, ...]")
    if not marker:
        raise ValueError(f"{scaffold.family}.py has no TABLE: its rows are made elsewhere.")
    opening, rows, tail = _split_table(rest)
    return f"{head}{scaffold.function}\n\n{marker}{opening}{rows}{scaffold.row}\n{tail}"


def _split_table(rest: str) -> tuple[str, str, str]:
    """What is between ``TABLE:`` and its closing parenthesis, and that parenthesis."""
    end = rest.rfind("\n)")
    if end < 0:  # a table made by one expression: the row is added to it
        return f"{rest.rstrip()} + (\n", "", ")\n"
    return "", rest[: end + 1], rest[end + 1 :]


def _with_test(scaffold: Scaffold, text: str | None) -> str:
    if text is None:
        text = (
            "# SPDX-License-Identifier: Apache-2.0\n"
            f'"""Lowerings of {scaffold.family.replace("_", " ")} against CPU PyTorch."""\n\n'
            "from __future__ import annotations\n\n"
            f"from torchtpu_core.lowering.{scaffold.family} import TABLE\n"
            "from torchtpu_core.testing.lowering import check\n"
        )
    text = _with_imports(
        text, ["from torchtpu_core.testing.database_samples import database_samples"]
    )
    return f"{text.rstrip()}\n\n{scaffold.test}"


def _with_imports(text: str, lines: list[str]) -> str:
    missing = [line for line in lines if line not in text]
    if not missing:
        return text
    anchor = "from __future__ import annotations\n"
    return text.replace(anchor, anchor + "\n" + "\n".join(missing) + "\n", 1)
