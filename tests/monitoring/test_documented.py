"""Each metric has its line in the documents."""

from __future__ import annotations

import re

from tests.house.tree import ROOT

PACKAGES = ("authority", "master", "millwheel", "worker")


def test_each_metric_has_its_line_in_the_documents() -> None:
    sources = [path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    named = {name for text in sources for name in re.findall(r'"(millwheel_[a-z_]+)"(?!:)', text)}
    named.remove("millwheel_progress")  # a table in the database of a sink
    page = (ROOT / "docs" / "operations.md").read_text()
    missing = {name for name in named if not re.search(rf"`{name}(_total)?[`{{]", page)}
    assert named
    assert missing == set()
