"""A release has one version, a part of the changelog, and the Pythons that CI tests."""

from __future__ import annotations

import re

from tests.house.tree import ROOT, pyproject

_SECTION = re.compile(r"^## \[(.+)\](?: - (\d{4}-\d\d-\d\d))?$", re.MULTILINE)


def test_the_changelog_has_a_part_for_the_version() -> None:
    sections = _SECTION.findall((ROOT / "CHANGELOG.md").read_text())
    assert sections[0] == ("Unreleased", "")
    released = [version for version, _ in sections[1:]]
    assert released[0] == pyproject()["project"]["version"]
    dates = [date for _, date in sections[1:]]
    assert all(dates)
    assert dates == sorted(dates, reverse=True)


def test_the_package_names_the_pythons_that_ci_tests() -> None:
    project = pyproject()["project"]
    prefix = "Programming Language :: Python :: "
    named = [one.removeprefix(prefix) for one in project["classifiers"] if re.fullmatch(prefix + r"3\.\d+", one)]
    tests = re.findall(r"python: \[(.+)\]", (ROOT / ".github" / "workflows" / "test.yml").read_text())[0]
    assert named == re.findall(r'"(3\.\d+)"', tests)
    assert project["requires-python"] == f">={named[0]}"
