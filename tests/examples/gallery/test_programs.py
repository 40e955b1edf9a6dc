"""Each program of the gallery is short, can be submitted as it is, and is on the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from millwheel.cli.loading import load
from tests.house.tree import ROOT

PROGRAMS = sorted(file for file in (ROOT / "examples" / "gallery").glob("*.py") if file.stem != "__init__")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_a_program_is_short_valid_tested_and_on_the_page(program: Path) -> None:
    assert len(program.read_text().splitlines()) < 60
    topology = load(f"{program}:{program.stem}").topology
    assert topology.validate() == []
    assert topology.name == program.stem.replace("_", "-")
    assert (Path(__file__).parent / f"test_{program.stem}.py").exists()
    assert f"(../examples/gallery/{program.name})" in (ROOT / "docs" / "gallery.md").read_text()
