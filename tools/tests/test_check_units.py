# SPDX-License-Identifier: Apache-2.0
"""Names that sources of one extension keep for themselves are found as a compiler sees them."""

from __future__ import annotations

from pathlib import Path

import check_units
from sources import ROOT

CPP = """\
// SPDX-License-Identifier: Apache-2.0
int shared(int x) { return x; }
namespace torchtpu {
namespace {

constexpr size_t kLimit = 3;  // of what
thread_local int depth;
std::atomic<int> calls{0};
const int table[] = {1, 2};
const char* text = "struct Quoted {";
struct Key {
  int word(int x) { return x; }
  int first{0};
};
using Keys = std::vector<Key>;
enum class Kind { kA, kB };
struct Declared;

template <typename T>
bool is_known(const T& value = {}) {
  int inner = 0;
  return [](int x) { return x; }(inner);
}

std::vector<int> listed(const std::function<void(int)>& call);

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("a", &listed);
}

}  // namespace

void after() {}
}  // namespace torchtpu
"""


def test_repository_compiles_in_any_units() -> None:
    assert check_units.main(ROOT) == 0


def test_own_names_finds_what_is_declared_directly() -> None:
    names = dict(check_units.own_names(CPP))
    assert list(names) == [
        *("kLimit", "depth", "calls", "table", "text", "Key", "Keys", "Kind", "Declared"),
        *("is_known", "listed"),
    ]
    assert (names["kLimit"], names["is_known"]) == (6, 19)


def test_check_name_in_two_sources_is_a_problem(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.cpp").write_text(f"namespace {{\nbool has({name} x) {{ }}\n}}\n")
    (problem,) = check_units.check(tmp_path, tmp_path)
    assert (problem.path, problem.line) == (Path("b.cpp"), 2)
    assert "has is a name of a.cpp as well" in problem.message
