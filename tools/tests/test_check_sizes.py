# SPDX-License-Identifier: Apache-2.0
"""Sizes are counted as a reader counts them, in Python and in C++."""

from __future__ import annotations

import ast
from pathlib import Path

import check_sizes
import pytest
from sources import ROOT


def test_repository_has_no_file_or_function_past_its_limit() -> None:
    assert check_sizes.main(ROOT) == 0


@pytest.mark.parametrize(
    ("lines", "head", "violations", "remarks"),
    [
        (400, "", 0, 0),
        (401, "", 0, 1),
        (700, "", 0, 1),
        (701, "", 1, 0),
        (2000, "# data table\n", 0, 0),
        (2000, "# a data table in prose\n", 1, 0),
    ],
)
def test_check_file_of_some_length(
    tmp_path: Path, lines: int, head: str, violations: int, remarks: int
) -> None:
    path = tmp_path / "x.py"
    path.write_text(head + "x = 1\n" * (lines - head.count("\n")))
    found = check_sizes.check(path, tmp_path)
    assert (len(found[0]), len(found[1])) == (violations, remarks)


@pytest.mark.parametrize(("lines", "violations"), [(80, 0), (81, 1)])
@pytest.mark.parametrize("suffix", [".py", ".cpp"])
def test_check_function_of_some_length(
    tmp_path: Path, suffix: str, lines: int, violations: int
) -> None:
    if suffix == ".py":
        text = "def f():\n" + "    pass\n" * (lines - 1)
    else:
        text = "int f() {\n" + "  g();\n" * (lines - 2) + "}\n"
    path = tmp_path / f"x{suffix}"
    path.write_text(text)
    assert len(check_sizes.check(path, tmp_path)[0]) == violations


def test_python_functions_finds_methods_and_nested_functions() -> None:
    module = ast.parse("class A:\n  def m(self):\n    def inner():\n      pass\n    return inner\n")
    assert set(check_sizes.python_functions(module)) == {("m", 2, 4), ("inner", 3, 2)}


CPP = """\
#define BODY(x) { \\
  x }
namespace a::b {
/* void commented() { */
struct S final : Base {
  S(int x) : x_(x) {}
  int get() const {
    if (x_) { return 1; }
    return 2;  // }
  }
  int x_{0};
};
const char* text = "void quoted() {";
const Row rows[] = {
    {"a", f(1)},
    {"b", f(2)},
};
enum class E { A, B };

PYBIND11_MODULE(_C, m) {
  m.def("f", [](int x) {
    return x;
  });
}
}  // namespace
"""


def test_cpp_functions_finds_definitions_only() -> None:
    assert list(check_sizes.cpp_functions(CPP)) == [
        ("S", 6, 1),
        ("get", 7, 4),
        ("PYBIND11_MODULE", 20, 5),
    ]
