"""The page of mutations has every mutation."""

from __future__ import annotations

import re

from simulation.mutations import MUTATIONS
from tests.house.tree import ROOT


def test_the_page_lists_every_mutation_once() -> None:
    page = (ROOT / "docs/mutations.md").read_text()
    assert sorted(re.findall(r"^\| `([a-z0-9-]+)`", page, flags=re.MULTILINE)) == sorted(MUTATIONS)
