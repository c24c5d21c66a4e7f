# SPDX-License-Identifier: Apache-2.0
"""torch comes first and no later step can replace it; a wheel is built once per content."""

from __future__ import annotations

from pathlib import Path

import install
import pytest


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """What each build saw of its sources; instead of building, an empty wheel is written."""
    seen: list[set[str]] = []

    def pip(*arguments: str) -> None:
        folder, sources = Path(arguments[-2]), Path(arguments[-1])
        seen.append({str(p.relative_to(sources)) for p in sources.rglob("*") if p.is_file()})
        folder.mkdir()
        (folder / f"a-{len(seen)}-py3-none-any.whl").touch()

    monkeypatch.setattr(install, "pip", pip)
    return seen


def package(folder: Path) -> Path:
    """Sources with what an earlier build in the tree leaves behind, and a link."""
    (folder / "build" / "lib").mkdir(parents=True)
    (folder / "build" / "lib" / "removed.py").touch()
    (folder / "_C.so").touch()
    (folder / "kept.py").write_text("x = 1")
    (folder.parent / "outside.py").write_text("y = 1")
    (folder / "link.py").symlink_to(folder.parent / "outside.py")
    return folder


def test_prerequisites_put_torch_first() -> None:
    first, second = install.prerequisites(None)
    assert first == ["-r", "requirements/torch.txt"]
    assert second == [*first, "-r", "requirements/build.txt"]


def test_prerequisites_with_constraint_apply_it_to_every_call() -> None:
    steps = install.prerequisites("requirements/oldest.txt")
    assert all("requirements/oldest.txt" in step for step in steps)


def test_wheel_of_unchanged_sources_is_built_once_without_remains(
    tmp_path: Path, built: list[set[str]]
) -> None:
    sources = package(tmp_path / "package")
    first = install.wheel(sources, tmp_path / "store")
    assert install.wheel(sources, tmp_path / "store") == first
    assert built == [{"kept.py", "link.py"}]


def test_wheel_of_changed_link_target_is_built_again_and_replaces_the_first(
    tmp_path: Path, built: list[set[str]]
) -> None:
    sources = package(tmp_path / "package")
    first = install.wheel(sources, tmp_path / "store")
    (tmp_path / "outside.py").write_text("y = 2")
    second = install.wheel(sources, tmp_path / "store")
    assert len(built) == 2
    assert second.exists() and not first.exists()
