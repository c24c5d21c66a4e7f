# SPDX-License-Identifier: Apache-2.0
"""One version serves all distributions."""

from __future__ import annotations

from pathlib import Path

import check_versions
import pytest
from sources import ROOT

PYPROJECT = """\
name = "torchtpu-eager"
dependencies = ["torchtpu-core==0.1.0", "torch>=2.13,<2.14"]
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository of one distribution."""
    package = tmp_path / "packages" / "torchtpu-eager"
    package.mkdir(parents=True)
    (tmp_path / "VERSION").write_text("0.1.0\n")
    (package / "VERSION").symlink_to("../../VERSION")
    (package / "pyproject.toml").write_text(PYPROJECT)
    return tmp_path


def test_repository_has_one_version() -> None:
    assert check_versions.main([], ROOT) == 0


def test_changed_version_makes_the_pins_wrong_until_written(root: Path) -> None:
    assert check_versions.problems(root) == []
    (root / "VERSION").write_text("0.2.0\n")
    (problem,) = check_versions.problems(root)
    assert (problem.line, "torchtpu-core==0.2.0" in problem.message) == (2, True)
    assert check_versions.main(["--write"], root) == 0
    text = (root / "packages" / "torchtpu-eager" / "pyproject.toml").read_text()
    assert text == PYPROJECT.replace("0.1.0", "0.2.0")


def test_package_with_a_version_of_its_own_is_refused(root: Path) -> None:
    link = root / "packages" / "torchtpu-eager" / "VERSION"
    link.unlink()
    link.write_text("0.1.0\n")
    (problem,) = check_versions.problems(root)
    assert "must be a link" in problem.message
